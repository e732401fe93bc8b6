-- Deletes a lock that has expired long ago, and the index that leads to it.
--
-- KEYS: the lock, the index of its id
-- ARGV: the value that was read

-- If another client has acquired the key since the read, its value differs.
if redis.call('GET', KEYS[1]) == ARGV[1] then
  redis.call('DEL', KEYS[1])
  if redis.call('GET', KEYS[2]) == KEYS[1] then
    redis.call('DEL', KEYS[2])
  end
end
return 0
