-- Tells whether a token holds a lock on this node. Changes nothing.
-- KEYS[1]  the lock's key          KEYS[2]  the key of its fence and claim
-- KEYS[3]  the node's marker
-- ARGV[1]  token
-- ARGV[2]  what the marker must begin with ("": nothing)
-- Answer: {1, fence, remaining TTL in ms, time} it does (fence 0: none is stored;
--         -1: without a TTL);
--         {0, 0, 0, time} it does not;
--         {3, 0, 0, time} the marker is another: this node does not vote.
-- What stands at KEYS[2], and the time, are told in acquire.lua.
local found = redis.call('MGET', KEYS[1], KEYS[2], KEYS[3])
local told = ARGV[2]
local clock = redis.pcall('TIME')
local now = clock[1] and clock[1] * 1000000 + clock[2] or 0
if told ~= '' and string.sub(found[3] or '', 1, #told) ~= told then
  return {3, 0, 0, now}
end
if found[1] ~= ARGV[1] then
  return {0, 0, 0, now}
end
local stored = string.match(found[2] or '0', '^%d+')
return {1, tonumber(stored), redis.call('PTTL', KEYS[1]), now}
