-- Takes the key for a token, unless it is there. KEYS: the key. ARGV: the token, the TTL in ms, the
-- database. Returns -3 if the key was taken, or else its remaining TTL as PTTL tells it.
if ARGV[3] ~= '0' then
  redis.call('select', ARGV[3])
end
if redis.call('set', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
  return -3
end
return redis.call('pttl', KEYS[1])
