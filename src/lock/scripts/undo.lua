-- Gives back on this node what one attempt to lock has taken, and nothing that was
-- granted before or since.
-- KEYS[1]  the lock's key          KEYS[2]  the key of its fence and claim
-- ARGV[1]  token                   ARGV[2]  the attempt's claim
-- ARGV[3]  "1": the attempt was refused where there are readers, and its client waits. It leaves its
--          intent here too, as it has taken the set with all intents.
-- Answer: {1, 0} given back; {0, 0} not taken by this attempt.
-- A key of another type is nobody's that we know.
local found = {redis.pcall('GET', KEYS[1]), redis.call('GET', KEYS[2])}
if found[1] ~= ARGV[1] or string.match(found[2] or '', ' (.+)$') ~= ARGV[2] then
  return {0, 0}
end
-- Not a must: an ACL may forbid it.
local told = ARGV[3] == '1' and redis.pcall('TIME')
redis.call('DEL', KEYS[1])
if told and told[1] then
  -- As acquire.lua leaves it.
  local now = told[1] * 1000 + math.floor(told[2] / 1000)
  local text = string.format
  redis.pcall('ZADD', KEYS[1], text('%.0f', -1e15 - now), 'lockgate', text('%.0f', -now - 1000), 'w ' .. ARGV[1])
  redis.pcall('PEXPIRE', KEYS[1], 1001)
end
wake('')
return {1, 0}
