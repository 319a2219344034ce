-- Puts a lock back on this node that a quorum of nodes has just confirmed, where the
-- node has lost it and nobody else has it.
-- KEYS[1]  the lock's key          KEYS[2]  the key of its fence and claim
-- ARGV[1]  token                   ARGV[2]  TTL in ms
-- ARGV[3]  the grant's fence       ARGV[4]  TTL of the fence in ms
-- ARGV[5]  the grant's claim
-- ARGV[6]  what the marker must be ("": anything)
-- Answer: {1, fence} put back; {0, 0} it is there, or another's, or was released through
--         another proxy;
--         {3, 0} the marker is another.
-- What stands at KEYS[2] is told in acquire.lua.
local found = {redis.call('GET', KEYS[2]), redis.call('GET', place)}
if found[2] ~= ARGV[6] and ARGV[6] ~= '' then
  return {3, 0}
end
-- What release.lua has noted.
if ask('GET', 'lockgate:ended:' .. beside) == ' ' .. ARGV[5] then
  return {0, 0}
end
if not redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2], 'NX') then
  -- The writer comes before a set without readers.
  local other = redis.pcall('GET', KEYS[1])
  if type(other) ~= 'table' or not mark(KEYS[1]) or settle(KEYS[1], time()) then
    return {0, 0}
  end
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
end
local value, largest = ARGV[3], string.match(found[1] or '0', '^%d+')
if tonumber(largest) > tonumber(value) then
  value = largest .. '/' .. value
end
redis.call('SET', KEYS[2], value .. ' ' .. ARGV[5], 'PX', ARGV[4])
return {1, tonumber(ARGV[3])}
