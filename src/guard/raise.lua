-- Makes the data node remember a fence of a lock, if it knows no larger one.
-- KEYS[1]  the key of the largest fence seen
-- ARGV[1]  fence, ARGV[2]  TTL of the fence in ms
-- Answer: the largest fence seen.
local seen = redis.call('GET', KEYS[1])
if seen and tonumber(seen) > tonumber(ARGV[1]) then
  return seen
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return ARGV[1]
