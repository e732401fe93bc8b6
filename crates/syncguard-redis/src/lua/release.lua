-- Releases the lock that an id holds.
--
-- KEYS: the index of the id
-- ARGV: JSON prefix of a lock of the id
-- Returns RELEASED, OTHER_OWNER, NO_INDEX, EXPIRED, NOT_A_LOCK or NO_LOCK.

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
call('DEL', key, index)
return live and RELEASED or EXPIRED
