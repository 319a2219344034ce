-- Tells whether a token holds a lock on this node. Changes nothing.
-- KEYS[1]  the lock's key          KEYS[2]  the key of its fence and claim
-- ARGV[1]  token
-- ARGV[2]  what the marker must be ("": anything)
-- Answer: {1, fence, remaining TTL in ms} it does (fence 0: none is stored;
--         -1: without a TTL);
--         {0, 0, 0} it does not;
--         {3, 0, 0} the marker is another: this node does not vote.
-- What stands at KEYS[2] is told in acquire.lua.
-- A key of another type is nobody's that we know.
local found = {
  redis.pcall('GET', KEYS[1]), redis.call('GET', KEYS[2]), redis.call('GET', place),
}
if found[3] ~= ARGV[2] and ARGV[2] ~= '' then
  return {3, 0, 0}
end
if found[1] ~= ARGV[1] then
  return {0, 0, 0}
end
local stored = string.match(found[2] or '0', '/(%d+)') or string.match(found[2] or '0', '^%d+')
return {1, tonumber(stored), redis.call('PTTL', KEYS[1])}
