-- Releases the lock that an id holds.
--
-- KEYS: the index of the id
-- ARGV: JSON prefix of a lock of the id
-- Returns 1; 0 if another id holds the key; -1 if there is no index; -2 if the lock had expired; -3 if the
-- value is not a lock; -5 if the index exists and the lock does not.

local call, index, head = redis.call, KEYS[1], ARGV[1]
local key = call('GET', index)
if not key then
  return -1
end
local value = call('GET', key)
if not value then
  return -5
end
local time = call('TIME')
--- lock.lua
-- An index can outlive its lock: only the stored lock says who owns it.
if not owned then
  return 0
end
call('DEL', key, index)
return live and 1 or -2
