-- Reads the lock in `value`: sets `expires` and `owned`, whether `id` holds it. Sets `lock`, too, if it
-- had to be decoded. Part of the scripts that judge stored locks.

local find, sub = string.find, string.sub
local lock, expires, owned
-- The locks that acquire.lua writes have id and expiry at fixed places, characters 12 to 33 and 50 to
-- 62; to look there costs a fraction of decoding. Quotes inside a key are escaped, so nothing else can
-- look the same. They also end alike: a value that was cut short does not.
if find(value, '{"lockId":"', 1, true) == 1 and find(value, '","expiresAtMs":', 34, true) == 34
  and find(value, ',"acquiredAtMs":', 63, true) == 63 and find(value, '"}', -2, true) then
  expires = tonumber(sub(value, 50, 62))
  owned = find(value, id, 12, true) == 12
end
if not expires then
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
  expires, owned = lock.expiresAtMs, lock.lockId == id
end
