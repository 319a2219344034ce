-- Writes a lock, as it is on other nodes, on a node that is to take their place.
-- KEYS[1]  the lock's key          KEYS[2]  the key of its fence and claim
-- KEYS[3]  the note of the copy     KEYS[4]  the marker
-- ARGV[1]  what the note must be   ARGV[2]  what the marker must be ('': there is none)
-- ARGV[3]  token ('': the lock is free)
-- ARGV[4]  TTL in ms ('-1': it has none; '0': it is to be taken back)
-- ARGV[5]  the grant's fence       ARGV[6]  the largest fence, of failed attempts too
-- ARGV[7]  TTL of the fence in ms
-- ARGV[8]  the grant's claim; where it is taken back: '', whatever it is
-- ARGV[9]  …  of a lock that has readers: 'claim token' and remaining time in ms of each
-- Answer: {1} done; {0} the node has forgotten the copy, or votes, or has another one.
-- What stands at KEYS[2] is told in acquire.lua.
if redis.call('GET', KEYS[3]) ~= ARGV[1] or (redis.call('GET', KEYS[4]) or '') ~= ARGV[2] then
  return {0}
end
local token, ttl, fence, claim = ARGV[3], ARGV[4], tonumber(ARGV[5]), ARGV[8]
local stored = redis.call('GET', KEYS[2]) or '0 -'
local now = ARGV[9] and time()
if ttl == '0' and now then
  if mark(KEYS[1]) then
    for at = 9, #ARGV, 2 do
      redis.call('ZREM', KEYS[1], ARGV[at])
    end
    settle(KEYS[1], now)
  end
  return {1}
end
if ttl == '0' then
  if claim == '' or redis.pcall('GET', KEYS[1]) == token and string.find(stored, ' ' .. claim, 1, true) then
    redis.call('DEL', KEYS[1])
  end
  return {1}
end
local largest = tonumber(string.match(stored, '^%d+'))
if largest < tonumber(ARGV[6]) then
  largest = tonumber(ARGV[6])
end
local value = string.format('%.0f', largest)
if token ~= '' then
  local same = redis.pcall('GET', KEYS[1]) == token
  local left = redis.call('PTTL', KEYS[1])
  if ttl == '-1' then
    redis.call('SET', KEYS[1], token)
  elseif not same or left >= 0 and left < tonumber(ttl) then
    redis.call('SET', KEYS[1], token, 'PX', ttl)
  end
  if largest > fence then
    value = value .. '/' .. string.format('%.0f', fence)
  end
end
if now then
  local score = mark(KEYS[1])
  if score == nil then
    redis.call('DEL', KEYS[1])
  end
  if not score then
    redis.call('ZADD', KEYS[1], -1e15, 'lockgate')
  end
  for at = 9, #ARGV, 2 do
    local ends_at = math.max(now + tonumber(ARGV[at + 1]), ends(KEYS[1], ARGV[at], now) or 0)
    redis.call('ZADD', KEYS[1], text(ends_at), ARGV[at])
  end
  settle(KEYS[1], now)
end
redis.call('SET', KEYS[2], value .. ' ' .. claim, 'PX', ARGV[7])
return {1}
