-- Carries a write out if the data node has seen no other fences than its own.
-- KEYS     the keys of the largest fences seen
-- ARGV     the fences, one for each key; how a number too large for Lua is read
--          back ('', 'GET' or 'HGET'); the write's own words
-- Answer: that of the write. Any error means that nothing was written, and that the
-- longer way is to be gone, which words the error.
local n = #KEYS
for i = 1, n do
  if redis.call('GET', KEYS[i]) ~= ARGV[i] then
    return redis.error_reply('FENCE is another')
  end
end
local reply = redis.pcall(unpack(ARGV, n + 2))
if type(reply) == 'number' and ARGV[n + 1] ~= '' and math.abs(reply) >= 2 ^ 53 then
  if ARGV[n + 1] == 'GET' then
    return redis.status_reply('INTEGER ' .. redis.call('GET', ARGV[n + 3]))
  end
  return redis.status_reply('INTEGER ' .. redis.call('HGET', ARGV[n + 3], ARGV[n + 4]))
end
return reply
