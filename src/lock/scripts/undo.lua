-- Gives back on this node what one attempt to lock has taken, and nothing that was
-- granted before or since.
-- KEYS[1]  the lock's key          KEYS[2]  the key of its fence and claim
-- ARGV[1]  token                   ARGV[2]  the attempt's claim
-- Answer: {1, 0} given back; {0, 0} not taken by this attempt.
-- A key of another type is nobody's that we know.
local found = {redis.pcall('GET', KEYS[1]), redis.call('GET', KEYS[2])}
if found[1] ~= ARGV[1] or string.match(found[2] or '', ' (.+)$') ~= ARGV[2] then
  return {0, 0}
end
redis.call('DEL', KEYS[1])
wake('')
return {1, 0}
