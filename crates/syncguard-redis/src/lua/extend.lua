-- Replaces the remaining time of the lock that an id holds.
--
-- KEYS: the index of the id
-- ARGV: how the value of a lock with the id begins, and the TTL in ms, in one
-- Answers the expiry; 0 where another id holds the key; -1 where there is no such lock; -2 where
-- it had expired; -3 where the value is no lock; -5 where the index leads to nothing.

local call, index = redis.call, KEYS[1]
local key = call('GET', index)
if not key then
  return -1
end
local value = call('GET', key)
if not value then
  return -5
end
local time, head = call('TIME'), ARGV[1]:sub(1, 49)
--- lock.lua
-- An index can outlive its lock. The owner is what the lock says, not what led here.
if not owned then
  return 0
end
if not live then
  call('DEL', key, index)
  return -2
end

local ms = time[2] / 1000
local renewed = time[1] * 1000 + ms - ms % 1 + ARGV[1]:sub(50)
-- In two parts, as in acquire.lua.
local low = renewed % 1000000
local ends = string.format('%d%06d', (renewed - low) / 1000000, low)
if lock then
  lock.expiresAtMs = renewed
  value = cjson.encode(lock)
else
  -- The expiry keeps its 13 digits and its place.
  value = head .. ends .. value:sub(63)
end
-- SET first: it is what Redis refuses when its memory is full, and then nothing has changed.
call('SET', key, value, 'PXAT', ends)
call('PEXPIREAT', index, ends)
return renewed
