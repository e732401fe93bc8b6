-- Frees the key that a lock id holds.
--
-- KEYS: the index of the id
-- ARGV: lock id
-- Answers 1; 0 where another id holds the key; -1 where there is no such lock; -2 where it had
-- expired; -3 where the value is no lock; -5 where the index leads to nothing.

local key = redis.call('GET', KEYS[1])
if not key then
  return -1
end
local value = redis.call('GET', key)
if not value then
  return -5
end
local id, expires = string.match(value, BEGINNING)
if not id or string.sub(value, -2) ~= END then
  local lock = decode(value)
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
redis.call('DEL', key, KEYS[1])
if expires + TOLERANCE_MS > time[1] * 1000 + time[2] / 1000 then
  return 1
end
return -2
