-- Keeps locks on this node for at least a TTL more. A longer one stays: their
-- holder may have renewed a lock for longer at the same time.
-- KEYS     of each lock its key and the key of its fence and claim, at most 50
--          locks; and the node's marker
-- ARGV     token, TTL in ms and claim of each; then the TTL of fences in ms, and
--          what the marker must begin with ("": nothing)
-- Answer: {1, sum, 0, time} all kept; {0, sum, 0, time} not all: the rest are not
--         held by their grants. In the sum each lock kept counts 2^(its place from 0).
--         {3, 0, 0, time} the marker is another: this node does not vote.
-- What stands beside a lock, and the time, are told in acquire.lua.
local told = ARGV[#ARGV]
local clock = redis.pcall('TIME')
local now = clock[1] and clock[1] * 1000000 + clock[2] or 0
if told ~= '' then
  local marker = redis.call('GET', KEYS[#KEYS]) or ''
  if string.sub(marker, 1, #told) ~= told then
    return {3, 0, 0, now}
  end
end
local sum, value = 0, 1
for i = 1, (#KEYS - 1) / 2 do
  local key, ttl, claim = KEYS[2 * i - 1], ARGV[3 * i - 1], ARGV[3 * i]
  local found = redis.call('MGET', key, KEYS[2 * i])
  local stored = string.match(found[2] or '', ' (.*)$')
  if found[1] == ARGV[3 * i - 2] and (stored == claim or stored == '-' or not stored) then
    if redis.call('PTTL', key) < tonumber(ttl) then
      redis.call('PEXPIRE', key, ttl)
    end
    redis.call('PEXPIRE', KEYS[2 * i], ARGV[#ARGV - 1])
    sum = sum + value
  end
  value = value * 2
end
return {sum == value - 1 and 1 or 0, sum, 0, now}
