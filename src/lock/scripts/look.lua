-- Tells who holds a lock on this node, and for how long. Changes nothing.
-- KEYS[1]  the lock's key          KEYS[2]  the key of its fence and claim
-- ARGV[1]  what the marker must be ("": anything)
-- Answer: {1, remaining TTL in ms, claim, token} held (-1: without a TTL; claim 0: none
--         is stored);
--         {0, 0, 0, ''} held by nobody;
--         {3, 0, 0, ''} the marker is another: this node does not vote.
-- Where there are readers, the token is 'lockgate-readers', which no client may use.
-- A real token is not empty. The empty one stands for a holder without a token that
-- could be told: a key of another type than a string, or a value of more than 32 KiB,
-- half of the longest reply that is read from a node.
-- What stands at KEYS[2] is told in acquire.lua.
local found = {
  redis.pcall('GET', KEYS[1]), redis.call('GET', KEYS[2]), redis.call('GET', place),
}
if found[3] ~= ARGV[1] and ARGV[1] ~= '' then
  return {3, 0, 0, ''}
end
local token = found[1]
if not token then
  return {0, 0, 0, ''}
end
-- GET of another type fails. readers.lua tells what a set of readers is.
if type(token) == 'table' then
  token = ''
  local score, told = redis.pcall('ZSCORE', KEYS[1], 'lockgate'), redis.pcall('TIME')
  if type(score) == 'string' and tonumber(score) <= -1e15 and told[1] then
    local now = string.format('%.0f', told[1] * 1000 + math.floor(told[2] / 1000))
    if redis.call('ZCOUNT', KEYS[1], now, '+inf') == 0 then
      return {0, 0, 0, ''}
    end
    return {1, redis.call('PTTL', KEYS[1]), 0, 'lockgate-readers'}
  end
elseif #token > 32768 then
  token = ''
end
local claim = tonumber(string.match(found[2] or '', ' (%d+)$')) or 0
return {1, redis.call('PTTL', KEYS[1]), claim, token}
