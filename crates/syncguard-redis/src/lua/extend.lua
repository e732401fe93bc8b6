-- Replaces the remaining time of the lock that an id holds.
--
-- KEYS: the index of the id
-- ARGV: lock id, TTL in ms
-- Answers {1, expiry}; 0 where another id holds the key; -1 where there is no such lock; -2 where
-- it had expired; -3 where the value is no lock; -5 where the index leads to nothing.

local call = redis.call
local key = call('GET', KEYS[1])
if not key then
  return -1
end
local value = call('GET', key)
if not value then
  return -5
end
--- lock.lua
-- An index can outlive its lock. The owner is what the lock says, not what led here.
if not owned then
  return 0
end
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if expires + TOLERANCE_MS <= now then
  call('DEL', key, KEYS[1])
  return -2
end

local renewed = now + ARGV[2]
local ends = string.format('%.0f', renewed)
if lock then
  lock.expiresAtMs = renewed
  value = cjson.encode(lock)
else
  -- The expiry keeps its 13 digits and its place.
  value = sub(value, 1, 49) .. ends .. sub(value, 63)
end
-- SET first: it is what Redis refuses when its memory is full, and then nothing has changed.
call('SET', key, value, 'PXAT', ends)
call('PEXPIREAT', KEYS[1], ends)
return {1, renewed}
