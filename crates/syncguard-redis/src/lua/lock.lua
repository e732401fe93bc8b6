-- Judges the lock in `value` by `time`: sets `live`, and `owned`, whether its text begins with `head`,
-- or its id is that of `head`. Sets `lock`, too, if it had to be decoded. Part of the scripts that
-- judge stored locks.

-- The locks that acquire.lua writes have id and expiry at fixed places, characters 12 to 33 and 50 to
-- 62; to look there costs a fraction of decoding. Quotes inside a key are escaped, so nothing else can
-- look the same. They also end alike: a value that was cut short does not.
local find = string.find
local owned = find(value, head, 1, true) == 1
local live, lock
local expires = (owned or find(value, '{"lockId":"', 1, true) == 1
    and find(value, '","expiresAtMs":', 34, true) == 34)
  and find(value, ',"acquiredAtMs":', 63, true) == 63 and find(value, '"}', -2, true)
  and value:match('^%d+', 50)
if expires and #expires == 13 then
  -- As texts first, as to read a number costs more: the first ten digits are seconds, and if those
  -- are not past, neither is the tolerance.
  live = expires >= time[1] or expires + TOLERANCE_MS > time[1] * 1000 + time[2] / 1000
else
  -- Some other implementation's: the same fields in any order. Or no lock at all, and then whoever
  -- wrote it needs it more than we need the key.
  local decodes
  decodes, lock = pcall(cjson.decode, value)
  if not (decodes and type(lock) == 'table'
    and type(lock.lockId) == 'string' and type(lock.key) == 'string'
    and type(lock.expiresAtMs) == 'number' and type(lock.acquiredAtMs) == 'number'
    and type(lock.fence) == 'string') then
    return -3
  end
  owned = lock.lockId == head:sub(12, 33)
  live = lock.expiresAtMs + TOLERANCE_MS > time[1] * 1000 + time[2] / 1000
end
