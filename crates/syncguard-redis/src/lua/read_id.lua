-- Reads what is stored under the key that a lock id leads to, and the time by which to judge it.
--
-- KEYS: the index of the id
-- Answers 'seconds microseconds value', or nil.

local call = redis.call
local key = call('GET', KEYS[1])
local value = key and call('GET', key)
if not value then
  return false
end
local time = call('TIME')
return time[1] .. ' ' .. time[2] .. ' ' .. value
