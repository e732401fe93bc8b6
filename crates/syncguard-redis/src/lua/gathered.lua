-- Runs several operations, each as if it were alone.
--
-- KEYS: those of each operation, one after the other
-- ARGV: a letter for each operation, in one string; then the arguments of each, one after the other
-- Returns the reply of each; in place of the reply of one that failed, ERROR_MARK and the error. Redis would
-- turn an error between the replies into one of the whole script.

local letters, replies, key, argument = ARGV[1], {}, 1, 2
for i = 1, #letters do
  local operation = operations[letters:sub(i, i)]
  local done, reply = pcall(operation.run, {KEYS[key], KEYS[key + 1], KEYS[key + 2]},
    {ARGV[argument], ARGV[argument + 1]})
  if done then
    replies[i] = reply
  else
    -- Redis 7.0 has a text here, others a table. Redis 6 begins it with a place in the script.
    local message = type(reply) == 'table' and reply.err or reply
    replies[i] = ERROR_MARK .. (message:find('^%u%u%u') and '' or 'ERR Error running script: ') .. message
  end
  key, argument = key + operation.keys, argument + operation.arguments
end
return replies
