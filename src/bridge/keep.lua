-- Gives the key a new TTL if it has the token. KEYS: the key. ARGV: the token, the TTL in ms, the
-- database, and whether a key that is not there is made anew. Returns whether the key is the
-- token's now.
if ARGV[3] ~= '0' then
  redis.call('select', ARGV[3])
end
local holder = redis.pcall('get', KEYS[1])
if holder == ARGV[1] then
  redis.call('pexpire', KEYS[1], ARGV[2])
  return 1
end
if not holder and ARGV[4] == '1' then
  redis.call('set', KEYS[1], ARGV[1], 'PX', ARGV[2])
  return 1
end
return 0
