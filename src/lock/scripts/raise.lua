-- Makes this node remember a fence at least as large.
-- KEYS[1]  the key of a lock's last fence
-- ARGV[1]  fence                   ARGV[2]  TTL of the fence in ms
-- Answer: {1, fence stored}.
local value = redis.call('GET', KEYS[1]) or '0'
local fence = tonumber(ARGV[1])
local stored = tonumber(string.match(value, '^%d+'))
if stored > fence then
  fence = stored
end
-- The attempt behind the fence (see acquire.lua) stays.
local attempt = string.match(value, ' .*$') or ''
redis.call('SET', KEYS[1], string.format('%.0f', fence) .. attempt, 'PX', ARGV[2])
return {1, fence}
