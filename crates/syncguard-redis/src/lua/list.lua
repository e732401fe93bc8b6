-- Reads the values of some names: of those that an earlier page left over, or else of those that SCAN finds.
--
-- KEYS: the names left over
-- ARGV: the cursor, the pattern of names, how many entries to look at, how many values to read at most, the
-- prefix of fence counters
-- Returns seconds and microseconds of the server's time, the next cursor, names and values in turn, and the
-- names that are left over now.

local names, cursor = KEYS, ARGV[1]
if #names == 0 then
  local found = redis.call('SCAN', cursor, 'MATCH', ARGV[2], 'COUNT', ARGV[3])
  cursor, names = found[1], found[2]
end
local limit, counters = tonumber(ARGV[4]), ARGV[5]
local time, seen, locks, left = redis.call('TIME'), {}, {}, {}
for _, name in ipairs(names) do
  if seen[name] or name:sub(1, #counters) == counters then
    -- Not a lock, or already listed on this page.
  elseif #locks == 2 * limit then
    left[#left + 1] = name
  else
    local value = redis.pcall('GET', name)
    if type(value) == 'table' and value.err and not value.err:find('WRONGTYPE', 1, true) then
      return value
    end
    -- The value of an index is a name.
    if type(value) == 'string' and value:find('"lockId"', 1, true) then
      locks[#locks + 1] = name
      locks[#locks + 1] = value
    end
  end
  seen[name] = true
end
return {time[1], time[2], cursor, locks, left}
