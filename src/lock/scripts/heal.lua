-- Puts a lock back on this node that a quorum of nodes has just confirmed, where the
-- node has lost it and nobody else has it.
-- KEYS[1]  the lock's key          KEYS[2]  the key of its fence and claim
-- KEYS[3]  the node's marker
-- ARGV[1]  token                   ARGV[2]  TTL in ms
-- ARGV[3]  the grant's fence       ARGV[4]  TTL of the fence in ms
-- ARGV[5]  the grant's claim
-- ARGV[6]  what the marker must begin with ("": nothing)
-- Answer: {1, fence, 0, time} put back; {0, 0, 0, time} it is there, or another's;
--         {3, 0, 0, time} the marker is another.
-- What stands at KEYS[2], and the time, are told in acquire.lua.
local found = redis.call('MGET', KEYS[2], KEYS[3])
local marker, told = found[2] or '', ARGV[6]
local clock = redis.pcall('TIME')
local now = clock[1] and clock[1] * 1000000 + clock[2] or 0
if told ~= '' and string.sub(marker, 1, #told) ~= told then
  return {3, 0, 0, now}
end
if not redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2], 'NX') then
  return {0, 0, 0, now}
end
local fence = math.max(tonumber(string.match(found[1] or '0', '^%d+')), tonumber(ARGV[3]))
redis.call('SET', KEYS[2], string.format('%.0f %s', fence, ARGV[5]), 'PX', ARGV[4])
return {1, fence, 0, now}
