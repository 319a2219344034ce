-- Gives back on this node what one attempt to lock has taken, and nothing that
-- the token held before it or has been granted since.
-- KEYS[1]  the lock's key          KEYS[2]  the key of its last fence
-- ARGV[1]  token                   ARGV[2]  the attempt's name
-- Answer: {1, 0} given back; {0, 0} not taken by this attempt.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return {0, 0}
end
if string.match(redis.call('GET', KEYS[2]) or '', ' (.+)$') ~= ARGV[2] then
  return {0, 0}
end
redis.call('DEL', KEYS[1])
redis.pcall('PUBLISH', 'lockgate:free:' .. KEYS[1], '')
return {1, 0}
