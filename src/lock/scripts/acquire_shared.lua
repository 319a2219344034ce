-- Adds a reader to a lock on this node.
-- KEYS[1]  the lock's key          KEYS[2]  the key of its fence and claim
-- ARGV[1]  token                   ARGV[2]  TTL in ms
-- ARGV[3]  the grant's claim       ARGV[4]  "1": only where the same claim has it
-- ARGV[5]  for how long intents of writers bar new readers, in ms
-- ARGV[6]  what the marker must be ("": anything)
-- Answer: 0, granted: a reader has no fence; an end that is later already stays;
--         {0, remaining TTL in ms, claim} held by a writer, as in acquire.lua; or barred by one
--         that waits; or not by this claim;
--         {3, 0} the marker is another: this node does not vote.
if ARGV[6] ~= '' and redis.call('GET', place) ~= ARGV[6] then
  return {3, 0}
end
local score = mark(KEYS[1])
if score == nil then
  local left, claim = redis.call('PTTL', KEYS[1]), 0
  if left == -2 then
    -- The key is free: an ACL forbids ZSCORE, and the script is to fail with that.
    return redis.call('ZSCORE', KEYS[1], 'lockgate')
  end
  if redis.pcall('GET', KEYS[1]) == ARGV[1] then
    local stored = redis.call('GET', KEYS[2]) or ''
    claim = tonumber(string.match(stored, ' (%d+)$')) or 1
  end
  return {0, left, claim}
end
local now, reader = time(), ARGV[3] .. ' ' .. ARGV[1]
local at = now + tonumber(ARGV[2])
if ARGV[4] ~= '' then
  local before = score and ends(KEYS[1], reader, now)
  if not before then
    return {0, -2, 0}
  end
  at = math.max(at, before)
elseif score and score < -1e15 and math.abs(now + 1e15 + score) < tonumber(ARGV[5])
  and redis.call('ZCOUNT', KEYS[1], '(-1e15', text(-now)) > 0 then
  -- An intent lasts for a second, and its writer renews it twice in that time.
  return {0, 500, 0}
end
if score then
  redis.call('ZADD', KEYS[1], text(at), reader)
  -- Not by PTTL: a node that stops between two commands would shorten it.
  settle(KEYS[1], now)
else
  redis.call('ZADD', KEYS[1], -1e15, 'lockgate', text(at), reader)
  redis.call('PEXPIREAT', KEYS[1], text(at + 1))
end
return 0
