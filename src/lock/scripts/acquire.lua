-- Takes a lock on this node and gives it the next fence.
-- KEYS[1]  the lock's key          KEYS[2]  the key of its fence and claim
-- KEYS[3]  the node's marker
-- ARGV[1]  token                   ARGV[2]  TTL in ms
-- ARGV[3]  proposed fence          ARGV[4]  TTL of the fence in ms
-- ARGV[5]  the grant's claim       ARGV[6]  "1": the same claim may have it already
-- ARGV[7]  what the marker must begin with ("": nothing)
-- Answer: {1, fence, 0, time} granted; a TTL that is longer already stays;
--         {0, remaining TTL in ms, 0, time} held (-1: without a TTL);
--         {3, 0, 0, time} the marker is another: this node does not vote;
--         {4, 0, 0, time} the fence has come to its end.
-- The time is the node's, in microseconds since 1970 (0: TIME was refused).
-- At KEYS[2] stands "fence claim". Version 0.1 writes "-" for the claim of a lock
-- that was taken again: it is anybody's who has the token.
local found = redis.call('MGET', KEYS[1], KEYS[2], KEYS[3])
local holder, marker, told = found[1], found[3], ARGV[7]
local clock = redis.pcall('TIME')
local now = clock[1] and clock[1] * 1000000 + clock[2] or 0
if told ~= '' and string.sub(marker or '', 1, #told) ~= told then
  return {3, 0, 0, now}
end
local stored, claim = string.match(found[2] or '0', '^(%d+) ?(.*)$')
local mine = holder == ARGV[1] and ARGV[6] == '1' and (claim == ARGV[5] or claim == '-' or claim == '')
if holder and not mine then
  return {0, redis.call('PTTL', KEYS[1]), 0, now}
end
local fence = tonumber(ARGV[3])
stored = tonumber(stored)
if stored >= fence then
  fence = stored + 1
end
-- Lua's numbers are exact up to 2^53; the format keeps them out of scientific notation.
if fence >= 9007199254740991 then
  return {4, 0, 0, now}
end
local ttl = tonumber(ARGV[2])
if mine then
  -- Its holder may still count on the grant before, should this one fail.
  ttl = math.max(ttl, redis.call('PTTL', KEYS[1]))
  redis.call('SET', KEYS[1], ARGV[1], 'PX', string.format('%.0f', ttl))
elseif not redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2], 'NX') then
  -- MGET does not see keys of other types than strings: they are held.
  return {0, redis.call('PTTL', KEYS[1]), 0, now}
end
redis.call('SET', KEYS[2], string.format('%.0f %s', fence, ARGV[5]), 'PX', ARGV[4])
if told ~= '' and tonumber(string.match(marker, '^%d+', #told + 1) or 0) < ttl then
  -- The longest TTL ever stored: a node that forgets waits for so long.
  local rest = string.match(marker, '\n.*$', #told + 1) or ''
  redis.call('SET', KEYS[3], told .. string.format('%.0f', ttl) .. rest)
end
return {1, fence, 0, now}
