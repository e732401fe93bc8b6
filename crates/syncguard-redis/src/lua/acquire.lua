-- Takes a free key for a lock id.
--
-- KEYS: the lock, the index of the id, the key's fence counter
-- ARGV: lock id, TTL in ms, the user's key as a JSON string
-- Answers {1, fence, expiry}; 0 where another id holds it; -3 where the value is no lock; -4 where
-- the fence counter is used up. Nothing changes unless it answers {1, ...}.

local value = redis.call('GET', KEYS[1])
local time = redis.call('TIME')
local former
if value then
  local id, expires = string.match(value, BEGINNING)
  if not id or string.sub(value, -2) ~= END then
    local lock = decode(value)
    if not lock then
      return -3
    end
    id, expires = lock.lockId, lock.expiresAtMs
  end
  -- Whole milliseconds on the left: the fraction on the right changes nothing.
  if expires + TOLERANCE_MS > time[1] * 1000 + time[2] / 1000 then
    if id == ARGV[1] then
      local lock = decode(value) -- delivered twice: the same grant
      return lock and {1, lock.fence, lock.expiresAtMs} or -3
    end
    return 0
  end
  former = id
end

-- The first write is one that Redis refuses when its memory is full. After a write that is always
-- allowed, such as DEL, it would refuse nothing any more.
local counter = redis.call('INCR', KEYS[3])
if counter < 1 or counter > FENCE_MAX then
  redis.call('DECR', KEYS[3])
  return -4
end

-- An expired lock that is still there (someone took its TTL away) has an index, to be removed if
-- it still means this lock. Its name differs from ours in the id alone. Not so where the prefix is
-- too long for an id beside it and index names are hashes: there the index ends with its TTL.
if former and #former == #ARGV[1] and string.sub(KEYS[2], -#ARGV[1]) == ARGV[1] then
  local index = string.sub(KEYS[2], 1, -#ARGV[1] - 1) .. former
  if redis.call('GET', index) == KEYS[1] then
    redis.call('DEL', index)
  end
end

-- Written out by hand: cjson.encode takes twice as long. And %.0f for what does not fit 32 bits,
-- because %d is cut to them on a server that was built so.
local millis = math.floor(time[2] / 1000)
local expires = time[1] * 1000 + millis + ARGV[2]
local ends = string.format('%.0f', expires)
local fence = string.format('%015.0f', counter)
local lock = string.format(
  '{"lockId":"%s","expiresAtMs":%s,"acquiredAtMs":%s%03d,"key":%s,"fence":"%s"}',
  ARGV[1], ends, time[1], millis, ARGV[3], fence)
-- One point in time for both. Redis would count a PX from each SET anew.
redis.call('SET', KEYS[1], lock, 'PXAT', ends)
redis.call('SET', KEYS[2], KEYS[1], 'PXAT', ends)
return {1, fence, expires}
