-- Takes a free key for a lock id.
--
-- KEYS: the lock, the index of the id, the key's fence counter
-- ARGV: lock id, TTL in ms, the user's key as a JSON string
-- Answers {1, fence, expiry}; 0 where another id holds it; -3 where the value is no lock; -4 where
-- the fence counter is used up. Nothing changes unless it answers {1, ...}.

local call = redis.call
local value = call('GET', KEYS[1])
local time = call('TIME')
local former
if value then
  --- lock.lua
  -- Whole milliseconds on the left: the fraction on the right changes nothing.
  if expires + TOLERANCE_MS > time[1] * 1000 + time[2] / 1000 then
    if not owned then
      return 0
    end
    -- Delivered twice: the same grant.
    local fence = lock and lock.fence or string.match(value, '"fence":"(%d+)"}$')
    return fence and {1, fence, expires} or -3
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
if former and #former == #ARGV[1] and string.sub(KEYS[2], -#ARGV[1]) == ARGV[1] then
  local index = string.sub(KEYS[2], 1, -#ARGV[1] - 1) .. former
  if call('GET', index) == KEYS[1] then
    call('DEL', index)
  end
end

-- Written out by hand: cjson.encode takes twice as long. Concatenated, a number shows 14 digits, which
-- is enough for times; and %.0f is for what does not fit 32 bits, because %d is cut to them on a server
-- that was built so.
local acquired = time[1] * 1000 + math.floor(time[2] / 1000)
local expires = acquired + ARGV[2]
local ends = string.format('%.0f', expires)
local fence = string.format('%015.0f', counter)
local lock = '{"lockId":"' .. ARGV[1] .. '","expiresAtMs":' .. ends .. ',"acquiredAtMs":' .. acquired
  .. ',"key":' .. ARGV[3] .. ',"fence":"' .. fence .. '"}'
-- One point in time for both. Redis would count a PX from each SET anew.
call('SET', KEYS[1], lock, 'PXAT', ends)
call('SET', KEYS[2], KEYS[1], 'PXAT', ends)
return {1, fence, expires}
