-- Keeps locks on this node for at least a TTL more. A longer one stays: their
-- holder may have renewed a lock for longer at the same time.
-- KEYS     of each lock its key and the key of its fence and claim, at most 50 locks
-- ARGV     token, TTL in ms (-1: the one that it has) and claim behind a blank of each;
--          then the TTL of fences in ms ("": they last long enough), and what the marker
--          must be ("": anything)
-- Answer: {1, sum} all kept; {0, sum} not all: the rest are not held by their
--         grants. In the sum each lock kept counts 2^(its place from 0).
--         {3, 0} the marker is another: this node does not vote.
-- What stands beside a lock is told in acquire.lua.
local told = ARGV[#ARGV]
if told ~= '' and redis.call('GET', place) ~= told then
  return {3, 0}
end
local sum, value, fences = 0, 1, ARGV[#ARGV - 1]
for i = 1, #KEYS / 2 do
  local key, ttl = KEYS[2 * i - 1], ARGV[3 * i - 1]
  local found = {redis.pcall('GET', key), redis.call('GET', KEYS[2 * i])}
  local stored = found[2] or '0 -'
  if found[1] == ARGV[3 * i - 2]
    and (string.find(stored, ARGV[3 * i], 1, true) or string.find(stored, '^%d+ ?%-?$')) then
    if redis.call('PTTL', key) < tonumber(ttl) then
      redis.call('PEXPIRE', key, ttl)
    end
    if fences ~= '' then
      redis.call('PEXPIRE', KEYS[2 * i], fences)
    end
    sum = sum + value
  end
  value = value * 2
end
return {sum == value - 1 and 1 or 0, sum}
