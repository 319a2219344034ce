-- Gives a lock back on this node and tells those who wait for it.
-- KEYS[1]  the lock's key          KEYS[2]  the key of its fence and claim
-- ARGV[1]  token                   ARGV[2]  who gives it back
-- ARGV[3]  the grant's claim ("": not known)
-- ARGV[4]  where it is not known, the largest fence that the grant can have ("": any)
-- Answer: {1, fence, listeners} released; {0, 0, 0} not held by this grant.
-- Listeners are subscribers of the lock's channel; -1: PUBLISH was refused.
local found = redis.call('MGET', KEYS[1], KEYS[2])
if found[1] ~= ARGV[1] then
  return {0, 0, 0}
end
local fence, claim = string.match(found[2] or '0', '^(%d+) ?(.*)$')
fence = tonumber(fence)
if ARGV[3] == '' then
  if ARGV[4] ~= '' and fence > tonumber(ARGV[4]) then
    return {0, 0, 0}
  end
elseif claim ~= ARGV[3] and claim ~= '-' and claim ~= '' then
  return {0, 0, 0}
end
redis.call('DEL', KEYS[1])
-- An ACL without the channel must not keep the lock from being given back.
local listeners = redis.pcall('PUBLISH', 'lockgate:free:' .. KEYS[1], ARGV[2])
if type(listeners) ~= 'number' then
  listeners = -1
end
return {1, fence, listeners}
