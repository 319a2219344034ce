-- Keeps locks on this node for at least a TTL more. A longer one stays: their
-- holder may have renewed a lock for longer at the same time.
-- KEYS     the locks' keys, at most 50
-- ARGV     token and TTL in ms of each
-- Answer: {1, sum} all kept; {0, sum} not all: the rest are not held by their
-- tokens. In the sum each lock kept counts 2^(its place from 0).
local sum, value = 0, 1
for i, key in ipairs(KEYS) do
  if redis.call('GET', key) == ARGV[2 * i - 1] then
    if redis.call('PTTL', key) < tonumber(ARGV[2 * i]) then
      redis.call('PEXPIRE', key, ARGV[2 * i])
    end
    sum = sum + value
  end
  value = value * 2
end
return {sum == value - 1 and 1 or 0, sum}
