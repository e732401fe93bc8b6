-- Replaces the remaining time of the lock that an id holds.
--
-- KEYS: the index of the id
-- ARGV: one string: JSON prefix of a lock of the id, TTL in ms
-- Returns the expiry; 0 if another id holds the key; -1 if there is no index; -2 if the lock had expired;
-- -3 if the value is not a lock; -5 if the index exists and the lock does not.

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
-- An index can outlive its lock: only the stored lock says who owns it.
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
  -- The expiry keeps its place and its length, 13 digits.
  value = head .. ends .. value:sub(63)
end
-- PEXPIREAT first, so that full memory ends no lease: when memory is full, Redis refuses only the first
-- write of a script, and never PEXPIREAT. All other refusals (READONLY, MISCONF, NOREPLICAS) hit the first
-- write.
call('PEXPIREAT', index, ends)
call('SET', key, value, 'PXAT', ends)
return renewed
