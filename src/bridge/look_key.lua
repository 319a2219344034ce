-- Tells the token that one of a lock's keys has, and its remaining TTL as PTTL tells it. KEYS: the
-- keys. ARGV: the database of each. Returns nothing if none is there, or is a string.
for at, key in ipairs(KEYS) do
  if is_there(ARGV[at]) then
    local holder = redis.pcall('get', key)
    if type(holder) == 'string' then
      return {holder, redis.call('pttl', key)}
    end
  end
end
return false
