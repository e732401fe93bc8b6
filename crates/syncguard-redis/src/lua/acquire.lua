-- Takes a free key for a lock id.
--
-- KEYS: the lock, the index of the id, the key's fence counter
-- ARGV: lock id, TTL in ms, a comma and the user's key as a JSON string, all in one
-- Answers 'expiry fence'; 0 where another id holds it; -3 where the value is no lock; -4 where the
-- fence counter is used up. Nothing changes unless it answers a text.
--
-- Each argument costs as much as a search in a string, and an answer in a table as much as a command.

local call = redis.call
local value = call('GET', KEYS[1])
local time = call('TIME')
local id = string.sub(ARGV[1], 1, 22)
local former
if value then
  --- lock.lua
  -- By seconds first: they decide, unless it ended just now.
  local ahead = expires + TOLERANCE_MS - time[1] * 1000
  if ahead >= 1000 or ahead > time[2] / 1000 then
    if not owned then
      return 0
    end
    -- Delivered twice: the same grant.
    local fence = lock and lock.fence or string.match(value, '"fence":"(%d+)"}$')
    return fence and string.format('%.0f ', expires) .. fence or -3
  end
  former = lock and lock.lockId or sub(value, 12, 33)
end

-- The first write is one that Redis refuses when its memory is full. After a write that is always
-- allowed, such as DEL, it would refuse nothing any more.
local counter = call('INCR', KEYS[3])
if counter < 1 or counter > FENCE_MAX then
  call('DECR', KEYS[3])
  return -4
end

-- An expired lock that is still there (someone took its TTL away) has an index, to be removed if
-- it still means this lock. Its name differs from ours in the id alone. Not so where the prefix is
-- too long for an id beside it and index names are hashes: there the index ends with its TTL.
if former and #former == #id and string.sub(KEYS[2], -#id) == id then
  local index = string.sub(KEYS[2], 1, -#id - 1) .. former
  if call('GET', index) == KEYS[1] then
    call('DEL', index)
  end
end

-- Written out by hand: cjson.encode takes twice as long, and a float a third of that. %d is cheap, but
-- cut to 32 bits on a server that was built so: hence large numbers in two parts.
local format = string.format
local ttl, key = string.match(ARGV[1], '(%d+),(.*)', 23)
local ms = time[2] / 1000
ms = ms - ms % 1
local expires = time[1] * 1000 + ms + ttl
local low = expires % 1000000
local ends = format('%d%06d', (expires - low) / 1000000, low)
low = counter % 1000000
local fence = format('%09d%06d', (counter - low) / 1000000, low)
local lock = '{"lockId":"' .. id .. '","expiresAtMs":' .. ends .. ',"acquiredAtMs":' .. time[1]
  .. format('%03d', ms) .. ',"key":' .. key .. ',"fence":"' .. fence .. '"}'
-- One point in time for both. Redis would count a PX from each SET anew.
call('SET', KEYS[1], lock, 'PXAT', ends)
call('SET', KEYS[2], KEYS[1], 'PXAT', ends)
return ends .. ' ' .. fence
