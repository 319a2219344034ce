-- Tells whether a token holds a lock on this node. Changes nothing.
-- KEYS[1]  the lock's key          KEYS[2]  the key of its last fence
-- ARGV[1]  token
-- Answer: {1, fence, remaining TTL in ms} it does (fence 0: none is stored;
--         -1: without a TTL);
--         {0, 0, 0} it does not.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return {0, 0, 0}
end
local stored = string.match(redis.call('GET', KEYS[2]) or '0', '^%d+')
return {1, tonumber(stored), redis.call('PTTL', KEYS[1])}
