-- Takes a lock on this node and gives it the next fence.
-- KEYS[1]  the lock's key          KEYS[2]  the key of its last fence
-- ARGV[1]  token                   ARGV[2]  TTL in ms
-- ARGV[3]  proposed fence          ARGV[4]  TTL of the fence in ms
-- ARGV[5]  a name for this attempt, for undo.lua
-- Answer: {1, fence} granted, also to the token that holds it already, whose TTL
--         is not shortened;
--         {0, remaining TTL in ms} held by another (-1: without a TTL).
-- At KEYS[2] stands "fence attempt". A lock taken again belongs to more than one
-- attempt, so that none may undo it: then "-" stands for the attempt.
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then
  return {0, redis.call('PTTL', KEYS[1])}
end
local fence = tonumber(ARGV[3])
local stored = tonumber(string.match(redis.call('GET', KEYS[2]) or '0', '^%d+'))
if stored >= fence then
  fence = stored + 1
end
-- Fences are exact up to 2^53; the format keeps them out of scientific notation.
local value = string.format('%.0f %s', fence, holder and '-' or ARGV[5])
redis.call('SET', KEYS[2], value, 'PX', ARGV[4])
local ttl = tonumber(ARGV[2])
if holder then
  -- Its holder may still count on the grant before, should this one fail.
  ttl = math.max(ttl, redis.call('PTTL', KEYS[1]))
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', string.format('%.0f', ttl))
return {1, fence}
