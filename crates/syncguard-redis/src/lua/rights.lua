#!lua flags=no-writes,allow-stale
-- Checks whether the user has permission for the commands of the other scripts, on the store's names.
--
-- ARGV: the name of a lock, of an index and of a fence counter
-- Returns the commands that it may not run, such as 'SET'.
--
-- Redis refuses the writes of a script with `no-writes`, so nothing is written. It checks permissions first:
-- the reason for the refusal says whether the permission is missing.

local lock, index, fence = ARGV[1], ARGV[2], ARGV[3]
local calls = {
  {'GET', lock}, {'GET', index}, {'SET', lock, ''}, {'SET', index, ''}, {'DEL', lock, index},
  {'INCR', fence}, {'DECR', fence}, {'PEXPIREAT', index, '1'}, {'TIME'},
}
-- The wording of 7.0, of later versions, and of Valkey.
local refusals = {'user executing the script', 'ACL failure in script', 'NOPERM'}
local denied = {}
for _, call in ipairs(calls) do
  local answer = redis.pcall(unpack(call))
  local reason = type(answer) == 'table' and answer.err
  for _, refusal in ipairs(refusals) do
    if reason and string.find(reason, refusal, 1, true) then
      denied[#denied + 1] = call[1]
      break
    end
  end
end
return denied
