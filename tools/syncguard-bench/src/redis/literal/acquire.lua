-- The specified steps, one by one: what the backend's own script is compared with.
--
-- KEYS: lock, index, fence counter. ARGV: lock id, TTL, tolerance, the lock's name, the user's key

local ttl, tolerance = tonumber(ARGV[2]), tonumber(ARGV[3])
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local stored = redis.call('GET', KEYS[1])
if stored then
  local holder = cjson.decode(stored)
  if holder.expiresAtMs > now - tolerance then
    return 0
  end
  if holder.lockId then
    redis.call('DEL', KEYS[2])
  end
end
local fence = string.format('%015d', redis.call('INCR', KEYS[3]))
local expiry = now + ttl
local document = cjson.encode({
  lockId = ARGV[1],
  expiresAtMs = expiry,
  acquiredAtMs = now,
  key = ARGV[5],
  fence = fence,
})
redis.call('SET', KEYS[1], document, 'PX', ttl)
redis.call('SET', KEYS[2], ARGV[4], 'PX', ttl)
return {1, fence, expiry}
