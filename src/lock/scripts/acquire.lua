-- Takes a lock on this node and gives it the next fence.
-- KEYS[1]  the lock's key          KEYS[2]  the key of its last fence
-- ARGV[1]  token                   ARGV[2]  TTL in ms
-- ARGV[3]  proposed fence          ARGV[4]  TTL of the fence in ms
-- Answer: {1, fence} granted; {2, fence} granted again to the token that held it;
--         {0, remaining TTL in ms} held by another (-1: without a TTL).
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then
  return {0, redis.call('PTTL', KEYS[1])}
end
local fence = tonumber(ARGV[3])
local stored = tonumber(redis.call('GET', KEYS[2]) or 0)
if stored >= fence then
  fence = stored + 1
end
-- Fences are exact up to 2^53; the format keeps them out of scientific notation.
redis.call('SET', KEYS[2], string.format('%.0f', fence), 'PX', ARGV[4])
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return {holder and 2 or 1, fence}
