-- Tells the token that the key has, and its remaining TTL as PTTL tells it. KEYS: the key. ARGV: the
-- database. Returns nothing if the key is not there, or is no string.
if ARGV[1] ~= '0' then
  redis.call('select', ARGV[1])
end
local holder = redis.pcall('get', KEYS[1])
if type(holder) ~= 'string' then
  return false
end
return {holder, redis.call('pttl', KEYS[1])}
