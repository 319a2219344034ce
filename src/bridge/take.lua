-- Takes a lock's keys for a token, unless one of them is there. KEYS: the keys. ARGV: the token, the
-- TTL in ms, and the database of each key. Returns -3 if they were taken, or else the remaining TTL of
-- one that is there, as PTTL tells it.
for at, key in ipairs(KEYS) do
  if is_there(ARGV[at + 2]) and redis.call('exists', key) == 1 then
    return redis.call('pttl', key)
  end
end
for at, key in ipairs(KEYS) do
  if is_there(ARGV[at + 2]) then
    redis.call('set', key, ARGV[1], 'PX', ARGV[2])
  end
end
return -3
