-- Keeps readers on this node for at least a TTL more. A later end stays: their holder may
-- have renewed one for longer at the same time.
-- KEYS     of each lock its key and the key of its fence and claim, at most 50 locks
-- ARGV     token, TTL in ms (-1: the one that it has) and claim of each; then what the marker must be
--          ("": anything)
-- Answer: {1, sum} all kept; {0, sum} not all: the rest are not held by their
--         grants. In the sum each lock kept counts 2^(its place from 0).
--         {3, 0} the marker is another: this node does not vote.
local told = ARGV[#ARGV]
if told ~= '' and redis.call('GET', place) ~= told then
  return {3, 0}
end
local sum, value, now = 0, 1, time()
for i = 1, #KEYS / 2 do
  local key, reader = KEYS[2 * i - 1], ARGV[3 * i] .. ' ' .. ARGV[3 * i - 2]
  local before, at = mark(key) and ends(key, reader, now), now + tonumber(ARGV[3 * i - 1])
  if before then
    if before < at then
      redis.call('ZADD', key, text(at), reader)
      settle(key, now)
    end
    sum = sum + value
  end
  value = value * 2
end
return {sum == value - 1 and 1 or 0, sum}
