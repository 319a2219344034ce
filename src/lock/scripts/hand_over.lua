-- Passes a lock on this node from one token to the next, with the next fence.
-- KEYS[1]  the lock's key          KEYS[2]  the key of its last fence
-- ARGV[1]  token that gives        ARGV[2]  token that takes
-- ARGV[3]  TTL in ms               ARGV[4]  proposed fence
-- ARGV[5]  TTL of the fence in ms  ARGV[6]  a name for this attempt, for undo.lua
-- Answer: {1, fence, listeners} passed on;
--         {2, fence, listeners} taken, but not from the token that gives it;
--         {0, remaining TTL in ms, 0} held by another (-1: without a TTL).
-- Listeners are subscribers of the lock's channel; -1: PUBSUB was refused.
-- What stands at KEYS[2] is told in acquire.lua.
local holder = redis.call('GET', KEYS[1])
local given = holder == ARGV[1]
if holder and not given and holder ~= ARGV[2] then
  return {0, redis.call('PTTL', KEYS[1]), 0}
end
local fence = tonumber(ARGV[4])
local stored = tonumber(string.match(redis.call('GET', KEYS[2]) or '0', '^%d+'))
if stored >= fence then
  fence = stored + 1
end
local attempt = (given or not holder) and ARGV[6] or '-'
redis.call('SET', KEYS[2], string.format('%.0f %s', fence, attempt), 'PX', ARGV[5])
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
local listeners = redis.pcall('PUBSUB', 'NUMSUB', 'lockgate:free:' .. KEYS[1])[2] or -1
return {given and 1 or 2, fence, listeners}
