-- Runs several operations, each as if alone.
--
-- KEYS: those of each operation, one after the other
-- ARGV: a letter for each operation, in one string; then the argument of each
-- Returns the reply of each; in place of the reply of one that failed, '-' and the error. Redis would turn
-- an error between the replies into one of the whole script.

local letters, replies, first = ARGV[1], {}, 1
for i = 1, #letters do
  local operation = operations[letters:sub(i, i)]
  local done, reply = pcall(operation.run, {KEYS[first], KEYS[first + 1], KEYS[first + 2]}, {ARGV[i + 1]})
  if done then
    replies[i] = reply
  elseif type(reply) == 'table' then
    replies[i] = '-' .. reply.err
  else
    -- Redis 6.
    replies[i] = '-ERR Error running script: ' .. reply
  end
  first = first + operation.keys
end
return replies
