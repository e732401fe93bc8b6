-- Deletes a lock that a read found long expired, and the index that leads to it.
--
-- KEYS: the lock, the index of its id
-- ARGV: the value that was read

-- If the key was acquired meanwhile, its value has changed.
if redis.call('GET', KEYS[1]) == ARGV[1] then
  redis.call('DEL', KEYS[1])
  if redis.call('GET', KEYS[2]) == KEYS[1] then
    redis.call('DEL', KEYS[2])
  end
end
return 0
