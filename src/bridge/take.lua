-- Takes a lock's keys for a token, unless one of them is there. KEYS: the keys. ARGV: the token, the
-- TTL in ms, and the database of each key. A database that there is not has no keys. Returns -3 if
-- they were taken, or else the remaining TTL of one that is there, as PTTL tells it.
local function is_there(at)
  local selected = redis.pcall('select', ARGV[at + 2])
  if type(selected) ~= 'table' or not selected.err then
    return true
  end
  -- Where the user may not SELECT, no key would be there.
  for _, reason in ipairs({'out of range', 'invalid DB index', 'cluster mode'}) do
    if string.find(selected.err, reason, 1, true) then
      return false
    end
  end
  error(selected.err)
end
for at, key in ipairs(KEYS) do
  if is_there(at) and redis.call('exists', key) == 1 then
    return redis.call('pttl', key)
  end
end
for at, key in ipairs(KEYS) do
  if is_there(at) then
    redis.call('set', key, ARGV[1], 'PX', ARGV[2])
  end
end
return -3
