-- Writes a lock, as it is on other nodes, on a node that is to take their place.
-- KEYS[1]  the lock's key          KEYS[2]  the key of its fence and claim
-- KEYS[3]  the note of the copy
-- ARGV[1]  what the note must be   ARGV[2]  token ('': the lock is free)
-- ARGV[3]  TTL in ms ('-1': it has none; '0': it is to be taken back)
-- ARGV[4]  the grant's fence       ARGV[5]  the largest fence, of failed attempts too
-- ARGV[6]  TTL of the fence in ms  ARGV[7]  the grant's claim; where it is taken back: '', whatever it is
-- Answer: {1} done; {0} the node has forgotten the copy since it was begun.
-- What stands at KEYS[2] is told in acquire.lua.
if redis.call('GET', KEYS[3]) ~= ARGV[1] then
  return {0}
end
local stored = redis.call('GET', KEYS[2]) or '0 -'
if ARGV[3] == '0' then
  if redis.pcall('GET', KEYS[1]) == ARGV[2] and string.find(stored, ' ' .. ARGV[7], 1, true) then
    redis.call('DEL', KEYS[1])
  end
  return {1}
end
local largest = tonumber(string.match(stored, '^%d+'))
if largest < tonumber(ARGV[5]) then
  largest = tonumber(ARGV[5])
end
local value = string.format('%.0f', largest)
if ARGV[2] ~= '' then
  local same = redis.pcall('GET', KEYS[1]) == ARGV[2]
  local left = redis.call('PTTL', KEYS[1])
  if ARGV[3] == '-1' then
    redis.call('SET', KEYS[1], ARGV[2])
  elseif not same or left >= 0 and left < tonumber(ARGV[3]) then
    redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
  end
  if largest > tonumber(ARGV[4]) then
    value = value .. '/' .. ARGV[4]
  end
end
redis.call('SET', KEYS[2], value .. ' ' .. ARGV[7], 'PX', ARGV[6])
return {1}
