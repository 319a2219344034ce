-- Gives a lock on this node that a token holds a new claim, and a fresh TTL: another
-- connection is its keeper from now on.
-- KEYS[1]  the lock's key          KEYS[2]  the key of its fence and claim
-- ARGV[1]  token                   ARGV[2]  TTL in ms
-- ARGV[3]  proposed fence          ARGV[4]  TTL of the fence in ms
-- ARGV[5]  the new claim
-- ARGV[6]  what the marker must be ("": anything)
-- Answer: {1, fence} taken over; {0, remaining TTL in ms} not held by that token;
--         {3, 0} and {4, 0} as in acquire.lua: nothing is done.
-- What stands at KEYS[2] is told in acquire.lua.
-- A key of another type is nobody's that we know.
local found = {
  redis.pcall('GET', KEYS[1]), redis.call('GET', KEYS[2]), redis.call('GET', place),
}
if found[3] ~= ARGV[6] and ARGV[6] ~= '' then
  return {3, 0}
end
if found[1] ~= ARGV[1] then
  return {0, math.max(redis.call('PTTL', KEYS[1]), 0)}
end
local stored = tonumber(string.match(found[2] or '0', '^%d+'))
local fence = math.max(tonumber(ARGV[3]), stored + 1)
if fence >= 9007199254740991 then
  return {4, 0}
end
-- Whoever had it may still count on a longer one.
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
redis.call('SET', KEYS[2], string.format('%.0f %s', fence, ARGV[5]), 'PX', ARGV[4])
return {1, fence}
