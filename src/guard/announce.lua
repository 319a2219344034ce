-- Makes the data node remember a fence of a lock, if it knows no larger one.
-- KEYS[1]  the key of the largest fence seen, in database 0
-- ARGV[1]  fence, ARGV[2]  TTL of the fence in ms, ARGV[3]  '' if database 0 is
--          selected, else '0'
-- Answer: the largest fence seen.
if ARGV[3] ~= '' and redis.pcall('SELECT', ARGV[3]).err then
  return redis.error_reply('NOPERM fences are kept in database 0, which this user may not SELECT')
end
local seen = redis.call('GET', KEYS[1])
if seen and tonumber(seen) > tonumber(ARGV[1]) then
  return seen
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return ARGV[1]
