-- Gives a reader a fresh TTL on this node.
-- KEYS[1]  the lock's key          KEYS[2]  the key of its fence and claim
-- ARGV[1]  token                   ARGV[2]  TTL in ms
-- ARGV[3]  the grant's claim
-- ARGV[4]  what the marker must be ("": anything)
-- Answer: {1, 0, claim} renewed;
--         {0, 0, 0} not held by that grant;
--         {3, 0, 0} the marker is another: this node does not vote.
if ARGV[4] ~= '' and redis.call('GET', place) ~= ARGV[4] then
  return {3, 0, 0}
end
local now, reader = mark(KEYS[1]) and time(), ARGV[3] .. ' ' .. ARGV[1]
if not now or not ends(KEYS[1], reader, now) then
  return {0, 0, 0}
end
redis.call('ZADD', KEYS[1], text(now + tonumber(ARGV[2])), reader)
settle(KEYS[1], now)
return {1, 0, tonumber(ARGV[3])}
