-- Acquires a free key for a lock id.
--
-- KEYS: the lock, the index of the id, the key's fence counter
-- ARGV: JSON prefix of the lock (up to the expiry); in one string, TTL in ms and JSON suffix (from the key to
-- the fence)
-- Returns the lock's value; if another id holds the key, in how many ms it is free; NOT_A_LOCK;
-- FENCE_EXHAUSTED. It changes nothing unless it returns a value.
--
-- TTL and suffix are joined: three arguments would cost the server 4.6 % more for a refusal than one; two cost
-- 1 % more (docs/performance.md). The reply has no table, which costs as much as a command.

local call, key, index = redis.call, KEYS[1], KEYS[2]
local value = call('GET', key)
local time = call('TIME')
local head = ARGV[1]
local former
if value then
  --- lock.lua
  if live then
    if not owned then
      -- Redis removes the lock in the millisecond after its expiry; by PX, the TypeScript original's
      -- expiry can be one later than it says. Without a TTL it is there until the tolerance is over.
      local now = time[1] * 1000 + time[2] / 1000
      local left = expires + 2 - now
      return math.ceil(left > 0 and left or expires + TOLERANCE_MS - now)
    end
    -- Idempotent: the same grant again.
    local whole = lock or value:find('"fence":"%d+"}$') and pcall(cjson.decode, value)
    return whole and value or NOT_A_LOCK
  end
  former = lock and lock.lockId or value:sub(ID_FIRST, ID_LAST)
end

-- The first write must be one that Redis refuses when its memory is full: after a write that it always
-- allows, such as DEL, it refuses none.
local counter = call('INCR', KEYS[3])
if counter < 1 or counter > FENCE_MAX then
  call('DECR', KEYS[3])
  return FENCE_EXHAUSTED
end

-- An expired lock that still exists (someone removed its TTL) has an index. Delete it if it still leads
-- to this lock. Its name differs from ours only in the id. If the prefix is so long that index names are
-- hashes, the name is unknown here, and the index expires with its TTL.
if former and #former == ID_LENGTH and index:sub(-ID_LENGTH) == head:sub(ID_FIRST, ID_LAST) then
  local old = index:sub(1, -ID_LENGTH - 1) .. former
  if call('GET', old) == key then
    call('DEL', old)
  end
end

-- Not cjson.encode, which takes twice as long; formatting a float takes a third of that. %d is cheap, but
-- some builds cut it to 32 bits: hence large numbers in two parts.
local format = string.format
local ttl, tail = ARGV[2]:match('(%d+)(.*)')
local ms = time[2] / 1000
ms = ms - ms % 1
local expires = time[1] * 1000 + ms + ttl
local low = expires % 1000000
local ends = format('%d%06d', (expires - low) / 1000000, low)
local lock = head .. ends .. BEFORE_ACQUIRED .. time[1]
  .. (#time[2] == 6 and time[2]:sub(1, 3) or format('%03d', ms)) .. tail
  .. format(counter < 2147483648 and '%015d"}' or '%015.0f"}', counter)
-- PXAT, not PX: both keys must expire at the same time, and Redis counts PX from each SET.
call('SET', key, lock, 'PXAT', ends)
call('SET', index, key, 'PXAT', ends)
return lock
