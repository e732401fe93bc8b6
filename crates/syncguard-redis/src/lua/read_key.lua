-- Reads what is stored under a key, and the time by which to judge it.
--
-- KEYS: the lock
-- Answers 'seconds microseconds value', or nil.

local call = redis.call
local value = call('GET', KEYS[1])
if not value then
  return false
end
local time = call('TIME')
return time[1] .. ' ' .. time[2] .. ' ' .. value
