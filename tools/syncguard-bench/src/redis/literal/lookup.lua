-- The specified steps, one by one. KEYS: index. ARGV: lock id, tolerance

local tolerance = tonumber(ARGV[2])
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local name = redis.call('GET', KEYS[1])
if not name then
  return nil
end
local stored = redis.call('GET', name)
if not stored then
  return nil
end
local holder = cjson.decode(stored)
if holder.lockId ~= ARGV[1] or holder.expiresAtMs <= now - tolerance then
  return nil
end
return stored
