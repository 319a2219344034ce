-- Deletes the key if it has the token. KEYS: the key. ARGV: the token, the database. Returns whether
-- it had.
if ARGV[2] ~= '0' then
  redis.call('select', ARGV[2])
end
if redis.pcall('get', KEYS[1]) == ARGV[1] then
  return redis.call('del', KEYS[1])
end
return 0
