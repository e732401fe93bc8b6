-- Frees the key that a lock id holds.
--
-- KEYS: the index of the id
-- ARGV: lock id
-- Answers 1; 0 where another id holds the key; -1 where there is no such lock; -2 where it had
-- expired; -3 where the value is no lock; -5 where the index leads to nothing.

local call = redis.call
local key = call('GET', KEYS[1])
if not key then
  return -1
end
local value = call('GET', key)
if not value then
  return -5
end
local id = ARGV[1]
--- lock.lua
-- An index can outlive its lock. The owner is what the lock says, not what led here.
if not owned then
  return 0
end
local time = call('TIME')
call('DEL', key, KEYS[1])
-- By seconds first: they decide, unless it ended just now.
local ahead = expires + TOLERANCE_MS - time[1] * 1000
if ahead >= 1000 or ahead > time[2] / 1000 then
  return 1
end
return -2
