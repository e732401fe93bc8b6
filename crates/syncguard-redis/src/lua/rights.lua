#!lua flags=no-writes,allow-stale
-- Which of the commands that the other scripts use may this user not run on the store's names?
--
-- ARGV: the name of a lock, of an index and of a fence counter
-- Answers what was refused for want of a right, as in 'SET'.
--
-- A script that may not write has its writes refused, but only after the rights were checked: the
-- reason tells which it was, and nothing is written.

local lock, index, fence = ARGV[1], ARGV[2], ARGV[3]
local calls = {
  {'GET', lock}, {'GET', index}, {'SET', lock, ''}, {'SET', index, ''}, {'DEL', lock, index},
  {'INCR', fence}, {'DECR', fence}, {'PEXPIREAT', index, '1'}, {'TIME'},
}
-- As 7.0 has it, and later versions and Valkey.
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
