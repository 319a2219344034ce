-- Gives a lock back on this node.
-- KEYS[1]  the lock's key          ARGV[1]  token
-- Answer: {1, 0} released; {0, 0} not held by this token.
if redis.call('GET', KEYS[1]) == ARGV[1] then
  return {redis.call('DEL', KEYS[1]), 0}
end
return {0, 0}
