-- Put before each script that judges a stored lock, after the two limits.

-- Decodes a lock that some other implementation wrote: the same fields, in any order. Nothing for
-- a value that is no lock; whoever wrote it needs it more than we need the key.
local function decode(value)
  local decodes, lock = pcall(cjson.decode, value)
  if decodes and type(lock) == 'table'
    and type(lock.lockId) == 'string' and type(lock.key) == 'string'
    and type(lock.expiresAtMs) == 'number' and type(lock.acquiredAtMs) == 'number'
    and type(lock.fence) == 'string' then
    return lock
  end
end

-- The locks that acquire.lua writes begin alike, with id and expiry at fixed places; to match them
-- costs a fraction of decoding. Quotes inside a key are escaped, so nothing else can look the same.
-- They also end alike: a value that was cut short does not.
local BEGINNING = '^{"lockId":"(......................)","expiresAtMs":(%d%d%d%d%d%d%d%d%d%d%d%d%d),"acquiredAtMs":'
local END = '"}'

