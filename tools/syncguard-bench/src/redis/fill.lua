-- Writes locks as acquire.lua does, many at a time. The keys are numbers of 12 digits.
--
-- ARGV: first number, how many, TTL in ms, the number all ids are made of (or `each` its own),
-- whether fence counters belong to them (1 or 0)

local time = redis.call('TIME')
local millis = math.floor(time[2] / 1000)
local ends = string.format('%.0f', time[1] * 1000 + millis + ARGV[3])
local start = string.format('%s%03d', time[1], millis)
for number = ARGV[1], ARGV[1] + ARGV[2] - 1 do
  local key = string.format('%012.0f', number)
  local id = 'AAAAAAAAAA' .. (ARGV[4] == 'each' and key or ARGV[4])
  local name = 'syncguard:' .. key
  local lock = '{"lockId":"' .. id .. '","expiresAtMs":' .. ends .. ',"acquiredAtMs":' .. start
    .. ',"key":"' .. key .. '","fence":"000000000000001"}'
  redis.call('SET', name, lock, 'PXAT', ends)
  redis.call('SET', 'syncguard:id:AAAAAAAAAA' .. key, name, 'PXAT', ends)
  if ARGV[5] == '1' then
    redis.call('SET', 'syncguard:fence:' .. name, '1')
  end
end
return 1
