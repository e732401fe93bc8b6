-- Removes a lock that was seen to be long expired, and the index that leads to it.
--
-- KEYS: the lock, the index of its id
-- ARGV: the value that was seen

-- Whoever took the key meanwhile has changed the value.
if redis.call('GET', KEYS[1]) == ARGV[1] then
  redis.call('DEL', KEYS[1])
  if redis.call('GET', KEYS[2]) == KEYS[1] then
    redis.call('DEL', KEYS[2])
  end
end
return 0
