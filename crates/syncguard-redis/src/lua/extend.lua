-- Replaces the remaining time of the lock that an id holds.
--
-- KEYS: the index of the id
-- ARGV: JSON prefix of a lock of the id, TTL in ms
-- Returns the expiry, OTHER_OWNER, NO_INDEX, EXPIRED, NOT_A_LOCK or NO_LOCK.

local call, index, head = redis.call, KEYS[1], ARGV[1]
local key = call('GET', index)
if not key then
  return NO_INDEX
end
local value = call('GET', key)
if not value then
  return NO_LOCK
end
local time = call('TIME')
--- lock.lua
-- An index can outlive its lock: only the stored lock says who owns it.
if not owned then
  return OTHER_OWNER
end
if not live then
  call('DEL', key, index)
  return EXPIRED
end

local ms = time[2] / 1000
local renewed = time[1] * 1000 + ms - ms % 1 + ARGV[2]
-- In two parts, as in acquire.lua.
local low = renewed % 1000000
local ends = string.format('%d%06d', (renewed - low) / 1000000, low)
if lock then
  lock.expiresAtMs = renewed
  value = cjson.encode(lock)
else
  -- The expiry keeps its place and its length.
  value = head .. ends .. value:sub(EXPIRY_LAST + 1)
end
-- PEXPIREAT first, so that full memory ends no lease: when memory is full, Redis refuses only the first
-- write of a script, and never PEXPIREAT. All other refusals (READONLY, MISCONF, NOREPLICAS) hit the first
-- write.
call('PEXPIREAT', index, ends)
call('SET', key, value, 'PXAT', ends)
return renewed
