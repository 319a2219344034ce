-- Puts a reader back on this node that a quorum of nodes has just confirmed, where the
-- node has lost it and no writer has the lock. Intents do not bar it: it was there before them.
-- KEYS[1]  the lock's key          KEYS[2]  the key of its fence and claim
-- ARGV[1]  token                   ARGV[2]  TTL in ms
-- ARGV[3]  the grant's claim
-- ARGV[4]  what the marker must be ("": anything)
-- Answer: {1, 0} put back; {0, 0} it is there, or a writer's, or was released through another
--         proxy;
--         {3, 0} the marker is another.
if ARGV[4] ~= '' and redis.call('GET', place) ~= ARGV[4] then
  return {3, 0}
end
-- What release_shared.lua has noted.
if ask('EXISTS', 'lockgate:ended:' .. beside .. ' ' .. ARGV[3]) == 1 then
  return {0, 0}
end
local score = mark(KEYS[1])
if score == nil then
  return {0, 0}
end
local now, reader = time(), ARGV[3] .. ' ' .. ARGV[1]
if score and ends(KEYS[1], reader, now) then
  return {0, 0}
end
if not score then
  redis.call('ZADD', KEYS[1], -1e15, 'lockgate')
end
redis.call('ZADD', KEYS[1], text(now + tonumber(ARGV[2])), reader)
settle(KEYS[1], now)
return {1, 0}
