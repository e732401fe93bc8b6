-- Included in the scripts that judge a stored lock. Reads the lock in `value`. Sets `live` (by `time`),
-- `owned` (by the id in `head`) and `expires`; also `lock` if it had to decode the value.

-- acquire.lua writes id and expiry at fixed places. Quotes inside a key are escaped, so no other value looks
-- the same. The check of the end recognises a truncated value.
local find = string.find
local owned = find(value, head, 1, true) == 1
local live, lock
local expires = (owned or find(value, BEFORE_ID, 1, true) == 1
    and find(value, BEFORE_EXPIRY, ID_LAST + 1, true) == ID_LAST + 1)
  and find(value, BEFORE_ACQUIRED, EXPIRY_LAST + 1, true) == EXPIRY_LAST + 1
  and find(value, '"}', -2, true)
  and value:match('^%d+', EXPIRY_FIRST)
if expires and #expires == EXPIRY_DIGITS then
  -- Compare as text first, which is cheaper than parsing a number: the first ten digits are seconds. If they
  -- have not passed, the lock is live.
  live = expires >= time[1] or expires + TOLERANCE_MS > time[1] * 1000 + time[2] / 1000
else
  -- Another implementation's lock, with the fields in any order. Or a foreign value: never overwrite it.
  local decodes
  decodes, lock = pcall(cjson.decode, value)
  expires = decodes and type(lock) == 'table' and lock.expiresAtMs
  if not (decodes and type(lock) == 'table'
    and type(lock.lockId) == 'string' and type(lock.key) == 'string'
    and type(expires) == 'number' and type(lock.acquiredAtMs) == 'number'
    and math.abs(expires) <= MAX_MS and math.abs(lock.acquiredAtMs) <= MAX_MS
    and type(lock.fence) == 'string') then
    return NOT_A_LOCK
  end
  owned = lock.lockId == head:sub(ID_FIRST, ID_LAST)
  live = expires + TOLERANCE_MS > time[1] * 1000 + time[2] / 1000
end
