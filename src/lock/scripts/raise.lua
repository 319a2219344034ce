-- Makes this node store a fence at least as large for a grant that has the lock.
-- KEYS[1]  the lock's key          KEYS[2]  the key of its fence and claim
-- ARGV[1]  token                   ARGV[2]  fence, ARGV[3]  TTL of the fence in ms
-- ARGV[4]  the grant's claim
-- ARGV[5]  what the marker must be ("": anything)
-- Answer: {1, the fence stored for the grant};
--         {0, 0} not held by that grant: another attempt may have been granted here
--         already, with an older fence;
--         {3, 0} the marker is another: this node does not vote.
-- What stands at KEYS[2] is told in acquire.lua.
-- A key of another type is nobody's that we know.
local found = {
  redis.pcall('GET', KEYS[1]), redis.call('GET', KEYS[2]), redis.call('GET', place),
}
if found[3] ~= ARGV[5] and ARGV[5] ~= '' then
  return {3, 0}
end
local largest, own, claim = string.match(found[2] or '0 -', '^(%d+)/?(%d*) ?(.*)$')
if found[1] ~= ARGV[1] or claim ~= ARGV[4] and #claim > 1 then
  return {0, 0}
end
local fence = math.max(tonumber(own) or tonumber(largest), tonumber(ARGV[2]))
local value = string.format('%.0f', fence)
if tonumber(largest) > fence then
  value = largest .. '/' .. value
end
redis.call('SET', KEYS[2], value .. ' ' .. ARGV[4], 'PX', ARGV[3])
return {1, fence}
