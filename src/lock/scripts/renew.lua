-- Gives a lock a fresh TTL on this node, and its fence too.
-- KEYS[1]  the lock's key          KEYS[2]  the key of its fence and claim
-- KEYS[3]  the node's marker
-- ARGV[1]  token                   ARGV[2]  TTL in ms
-- ARGV[3]  the grant's claim ("": not known)
-- ARGV[4]  TTL of the fence in ms
-- ARGV[5]  what the marker must begin with ("": nothing)
-- Answer: {1, fence, claim, time} renewed (0: none is stored);
--         {0, 0, 0, time} not held by that grant;
--         {3, 0, 0, time} the marker is another: this node does not vote.
-- What stands at KEYS[2], and the time, are told in acquire.lua.
local found = redis.call('MGET', KEYS[1], KEYS[2], KEYS[3])
local marker, told = found[3] or '', ARGV[5]
local clock = redis.pcall('TIME')
local now = clock[1] and clock[1] * 1000000 + clock[2] or 0
if told ~= '' and string.sub(marker, 1, #told) ~= told then
  return {3, 0, 0, now}
end
local fence, claim = string.match(found[2] or '0', '^(%d+) ?(.*)$')
if found[1] ~= ARGV[1]
  or ARGV[3] ~= '' and claim ~= ARGV[3] and claim ~= '-' and claim ~= '' then
  return {0, 0, 0, now}
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
redis.call('PEXPIRE', KEYS[2], ARGV[4])
if told ~= '' and tonumber(string.match(marker, '^%d+', #told + 1) or 0) < tonumber(ARGV[2]) then
  local rest = string.match(marker, '\n.*$', #told + 1) or ''
  redis.call('SET', KEYS[3], told .. ARGV[2] .. rest)
end
return {1, tonumber(fence), tonumber(claim) or 0, now}
