-- Gives a lock a fresh TTL on this node, and its fence too.
-- KEYS[1]  the lock's key          KEYS[2]  the key of its fence and claim
-- ARGV[1]  token                   ARGV[2]  TTL in ms
-- ARGV[3]  the grant's claim ("": not known)
-- ARGV[4]  TTL of the fence in ms
-- ARGV[5]  what the marker must be ("": anything)
-- Answer: {1, fence, claim} renewed (0: none is stored);
--         {0, 0, 0} not held by that grant;
--         {3, 0, 0} the marker is another: this node does not vote.
-- What stands at KEYS[2] is told in acquire.lua.
-- A key of another type is nobody's that we know.
local found = {
  redis.pcall('GET', KEYS[1]), redis.call('GET', KEYS[2]), redis.call('GET', place),
}
if found[3] ~= ARGV[5] and ARGV[5] ~= '' then
  return {3, 0, 0}
end
local largest, own, claim = string.match(found[2] or '0 -', '^(%d+)/?(%d*) ?(.*)$')
if found[1] ~= ARGV[1] or ARGV[3] ~= '' and claim ~= ARGV[3] and #claim > 1 then
  return {0, 0, 0}
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
redis.call('PEXPIRE', KEYS[2], ARGV[4])
return {1, tonumber(own) or tonumber(largest), tonumber(claim) or 0}
