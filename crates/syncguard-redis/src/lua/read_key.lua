-- Reads what is stored under a key, and the time by which to judge it.
--
-- KEYS: the lock
-- Answers {value, seconds, microseconds}, or nil.

local call = redis.call
local value = call('GET', KEYS[1])
if not value then
  return false
end
local time = call('TIME')
return {value, time[1], time[2]}
