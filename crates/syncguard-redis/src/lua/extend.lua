-- Replaces the remaining time of the lock that an id holds.
--
-- KEYS: the index of the id
-- ARGV: lock id, TTL in ms
-- Answers {1, expiry}; 0 where another id holds the key; -1 where there is no such lock; -2 where
-- it had expired; -3 where the value is no lock; -5 where the index leads to nothing.

local key = redis.call('GET', KEYS[1])
if not key then
  return -1
end
local value = redis.call('GET', key)
if not value then
  return -5
end
local lock
local id, expires = string.match(value, BEGINNING)
if not id or string.sub(value, -2) ~= END then
  lock = decode(value)
  if not lock then
    return -3
  end
  id, expires = lock.lockId, lock.expiresAtMs
end
-- An index can outlive its lock. The owner is what the lock says, not what led here.
if id ~= ARGV[1] then
  return 0
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if expires + TOLERANCE_MS <= now then
  redis.call('DEL', key, KEYS[1])
  return -2
end

local renewed = now + ARGV[2]
local ends = string.format('%.0f', renewed)
if lock then
  lock.expiresAtMs = renewed
  value = cjson.encode(lock)
else
  -- The expiry keeps its 13 digits and its place: characters 50 to 62.
  value = string.sub(value, 1, 49) .. ends .. string.sub(value, 63)
end
-- SET first: it is what Redis refuses when its memory is full, and then nothing has changed.
redis.call('SET', key, value, 'PXAT', ends)
redis.call('PEXPIREAT', KEYS[1], ends)
return {1, renewed}
