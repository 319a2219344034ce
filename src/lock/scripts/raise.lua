-- Makes this node remember a fence at least as large, where its token has the lock.
-- KEYS[1]  the lock's key          KEYS[2]  the key of its last fence
-- ARGV[1]  token                   ARGV[2]  fence, ARGV[3]  TTL of the fence in ms
-- Answer: {1, fence stored}; {0, 0} not held by that token: another attempt may
-- have been granted here already, with an older fence.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return {0, 0}
end
local value = redis.call('GET', KEYS[2]) or '0'
local fence = tonumber(ARGV[2])
local stored = tonumber(string.match(value, '^%d+'))
if stored > fence then
  fence = stored
end
-- The attempt behind the fence (see acquire.lua) stays.
local attempt = string.match(value, ' .*$') or ''
redis.call('SET', KEYS[2], string.format('%.0f', fence) .. attempt, 'PX', ARGV[3])
return {1, fence}
