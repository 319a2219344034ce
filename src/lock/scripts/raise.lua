-- Makes this node remember a fence at least as large.
-- KEYS[1]  the key of a lock's last fence
-- ARGV[1]  fence                   ARGV[2]  TTL of the fence in ms
-- Answer: {1, fence stored}.
local fence = tonumber(ARGV[1])
local stored = tonumber(redis.call('GET', KEYS[1]) or 0)
if stored > fence then
  fence = stored
end
redis.call('SET', KEYS[1], string.format('%.0f', fence), 'PX', ARGV[2])
return {1, fence}
