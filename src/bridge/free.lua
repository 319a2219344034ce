-- Deletes those of a lock's keys that have the token. KEYS: the keys. ARGV: the token, and the
-- database of each. Returns whether one had it.
local had = 0
for at, key in ipairs(KEYS) do
  if is_there(ARGV[at + 1]) then
    if redis.pcall('get', key) == ARGV[1] then
      redis.call('del', key)
      had = 1
    end
  end
end
return had
