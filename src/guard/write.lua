-- Carries a write out if the data node has seen no other fences than its own.
-- KEYS     the keys of the largest fences seen, in database 0
-- ARGV     the fences, one for each key; the database that the write is for, '' if it
--          is 0; how a number too large for Lua is read back ('', 'GET' or 'HGET');
--          the write's own words
-- Answer: that of the write. Any error means that nothing was written, and that the
-- longer way is to be gone, which words the error.
local n = #KEYS
local database = ARGV[n + 1]
if database ~= '' then
  redis.call('SELECT', 0)
end
for i = 1, n do
  if redis.call('GET', KEYS[i]) ~= ARGV[i] then
    return redis.error_reply('FENCE is another')
  end
end
if database ~= '' then
  redis.call('SELECT', database)
end
local reply = redis.pcall(unpack(ARGV, n + 3))
if type(reply) == 'number' and ARGV[n + 2] ~= '' and math.abs(reply) >= 2 ^ 53 then
  if ARGV[n + 2] == 'GET' then
    return redis.status_reply('INTEGER ' .. redis.call('GET', ARGV[n + 4]))
  end
  return redis.status_reply('INTEGER ' .. redis.call('HGET', ARGV[n + 4], ARGV[n + 5]))
end
return reply
