-- Frees the key that a lock id holds.
--
-- KEYS: the index of the id
-- ARGV: how the value of a lock with the id begins
-- Answers 1; 0 where another id holds the key; -1 where there is no such lock; -2 where it had
-- expired; -3 where the value is no lock; -5 where the index leads to nothing.

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
-- An index can outlive its lock. The owner is what the lock says, not what led here.
if not owned then
  return 0
end
call('DEL', key, index)
return live and 1 or -2
