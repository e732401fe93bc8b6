-- Takes a free key for a lock id.
--
-- KEYS: the lock, the index of the id, the key's fence counter
-- ARGV: how the lock's value begins, up to the expiry; the TTL in ms; how it goes on from the key to
-- the fence: all in one
-- Answers the lock's value; 0 where another id holds it; -3 where the value is no lock; -4 where the
-- fence counter is used up. Nothing changes unless it answers a text.
--
-- Each argument costs as much as a search in a string, and an answer in a table as much as a command.

local call, key, index = redis.call, KEYS[1], KEYS[2]
local value = call('GET', key)
local time = call('TIME')
local head = ARGV[1]:sub(1, 49)
local former
if value then
  --- lock.lua
  if live then
    if not owned then
      return 0
    end
    -- Delivered twice: the same grant.
    local whole = lock or value:find('"fence":"%d+"}$') and pcall(cjson.decode, value)
    return whole and value or -3
  end
  former = lock and lock.lockId or value:sub(12, 33)
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
if former and #former == 22 and index:sub(-22) == head:sub(12, 33) then
  local old = index:sub(1, -23) .. former
  if call('GET', old) == key then
    call('DEL', old)
  end
end

-- Written out by hand: cjson.encode takes twice as long, and a float a third of that. %d is cheap, but
-- cut to 32 bits on a server that was built so: hence large numbers in two parts.
local format = string.format
local ttl, tail = ARGV[1]:match('(%d+)(.*)', 50)
local ms = time[2] / 1000
ms = ms - ms % 1
local expires = time[1] * 1000 + ms + ttl
local low = expires % 1000000
local ends = format('%d%06d', (expires - low) / 1000000, low)
local lock = head .. ends .. ',"acquiredAtMs":' .. time[1]
  .. (#time[2] == 6 and time[2]:sub(1, 3) or format('%03d', ms)) .. tail
  .. format(counter < 2147483648 and '%015d"}' or '%015.0f"}', counter)
-- One point in time for both. Redis would count a PX from each SET anew.
call('SET', key, lock, 'PXAT', ends)
call('SET', index, key, 'PXAT', ends)
return lock
