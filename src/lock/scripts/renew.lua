-- Gives a lock a fresh TTL on this node.
-- KEYS[1]  the lock's key
-- ARGV[1]  token                   ARGV[2]  TTL in ms
-- Answer: {1, 0} renewed; {0, 0} not held by that token.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return {0, 0}
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return {1, 0}
