-- Replaces the remaining time of the lock that an id holds.
--
-- KEYS: the index of the id
-- ARGV: lock id and TTL in ms, in one
-- Answers the expiry; 0 where another id holds the key; -1 where there is no such lock; -2 where
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
local id = string.sub(ARGV[1], 1, 22)
--- lock.lua
-- An index can outlive its lock. The owner is what the lock says, not what led here.
if not owned then
  return 0
end
local time = call('TIME')
local ms = time[2] / 1000
local now = time[1] * 1000 + ms - ms % 1
if expires + TOLERANCE_MS <= now then
  call('DEL', key, KEYS[1])
  return -2
end

local renewed = now + sub(ARGV[1], 23)
-- In two parts, as in acquire.lua.
local low = renewed % 1000000
local ends = string.format('%d%06d', (renewed - low) / 1000000, low)
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
return renewed
