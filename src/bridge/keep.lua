-- Gives a lock's keys a new TTL if they have the token. KEYS: the keys. ARGV: the token, the TTL in
-- ms (0: none), whether keys are made anew if none of them is there, whether a longer TTL stays, and the
-- database of each. A key that is missing beside one that is there is made. Returns 1 if all are the
-- token's, 2 if none was there and they were made, and else 0.
local had = false
for at, key in ipairs(KEYS) do
  if is_there(ARGV[at + 4]) then
    local holder = redis.pcall('get', key)
    if holder == ARGV[1] then
      had = true
    elseif holder then
      return 0
    end
  end
end
if not had and ARGV[3] ~= '1' then
  return 0
end
for at, key in ipairs(KEYS) do
  if is_there(ARGV[at + 4]) then
    if ARGV[2] == '0' then
      redis.call('set', key, ARGV[1])
    elseif ARGV[4] ~= '1' or redis.call('pttl', key) < tonumber(ARGV[2]) then
      redis.call('set', key, ARGV[1], 'PX', ARGV[2])
    end
  end
end
return had and 1 or 2
