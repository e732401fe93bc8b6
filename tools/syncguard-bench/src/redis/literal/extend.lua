-- The specified steps, one by one. KEYS: index. ARGV: lock id, tolerance, TTL

local tolerance, ttl = tonumber(ARGV[2]), tonumber(ARGV[3])
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local name = redis.call('GET', KEYS[1])
if not name then
  return -1
end
local stored = redis.call('GET', name)
if not stored then
  return -1
end
local holder = cjson.decode(stored)
if holder.expiresAtMs <= now - tolerance then
  redis.call('DEL', name, KEYS[1])
  return -2
end
if holder.lockId ~= ARGV[1] then
  return 0
end
local expiry = now + ttl
holder.expiresAtMs = expiry
redis.call('SET', name, cjson.encode(holder), 'PX', ttl)
redis.call('SET', KEYS[1], name, 'PX', ttl)
return {1, expiry}
