-- Tells the token that one of a lock's keys has, and its remaining TTL as PTTL tells it. KEYS: the
-- keys. ARGV: the database of each. Returns nothing if none is there, or is a string.
local function is_there(at)
  local selected = redis.pcall('select', ARGV[at])
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
  if is_there(at) then
    local holder = redis.pcall('get', key)
    if type(holder) == 'string' then
      return {holder, redis.call('pttl', key)}
    end
  end
end
return false
