-- Deletes those of a lock's keys that have the token. KEYS: the keys. ARGV: the token, and the
-- database of each. Returns whether one had it.
local function is_there(at)
  local selected = redis.pcall('select', ARGV[at + 1])
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
local had = 0
for at, key in ipairs(KEYS) do
  if is_there(at) then
    if redis.pcall('get', key) == ARGV[1] then
      redis.call('del', key)
      had = 1
    end
  end
end
return had
