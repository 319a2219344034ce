-- Passes a lock on this node from one grant to the next, with the next fence.
-- KEYS[1]  the lock's key          KEYS[2]  the key of its fence and claim
-- KEYS[3]  the node's marker
-- ARGV[1]  token that gives        ARGV[2]  its claim ("": not known)
-- ARGV[3]  token that takes        ARGV[4]  TTL in ms
-- ARGV[5]  proposed fence          ARGV[6]  TTL of the fence in ms
-- ARGV[7]  the taker's claim
-- ARGV[8]  what the marker must begin with ("": nothing)
-- Answer: {1, fence, listeners, time} passed on;
--         {2, fence, listeners, time} taken, but not from the grant that gives it;
--         {0, remaining TTL in ms, 0, time} held by another (-1: without a TTL);
--         {3, 0, 0, time} and {4, 0, 0, time} as in acquire.lua: nothing is done.
-- Listeners are subscribers of the lock's channel; -1: PUBSUB was refused.
-- What stands at KEYS[2], and the time, are told in acquire.lua.
local found = redis.call('MGET', KEYS[1], KEYS[2], KEYS[3])
local holder, marker, told = found[1], found[3], ARGV[8]
local clock = redis.pcall('TIME')
local now = clock[1] and clock[1] * 1000000 + clock[2] or 0
if told ~= '' and string.sub(marker or '', 1, #told) ~= told then
  return {3, 0, 0, now}
end
local stored, claim = string.match(found[2] or '0', '^(%d+) ?(.*)$')
local given = holder == ARGV[1]
  and (ARGV[2] == '' or claim == ARGV[2] or claim == '-' or claim == '')
if holder and not given then
  return {0, redis.call('PTTL', KEYS[1]), 0, now}
end
local fence = tonumber(ARGV[5])
stored = tonumber(stored)
if stored >= fence then
  fence = stored + 1
end
if fence >= 9007199254740991 then
  return {4, 0, 0, now}
end
if given then
  redis.call('SET', KEYS[1], ARGV[3], 'PX', ARGV[4])
elseif not redis.call('SET', KEYS[1], ARGV[3], 'PX', ARGV[4], 'NX') then
  return {0, redis.call('PTTL', KEYS[1]), 0, now}
end
redis.call('SET', KEYS[2], string.format('%.0f %s', fence, ARGV[7]), 'PX', ARGV[6])
if told ~= '' and tonumber(string.match(marker, '^%d+', #told + 1) or 0) < tonumber(ARGV[4]) then
  local rest = string.match(marker, '\n.*$', #told + 1) or ''
  redis.call('SET', KEYS[3], told .. ARGV[4] .. rest)
end
local listeners = redis.pcall('PUBSUB', 'NUMSUB', 'lockgate:free:' .. KEYS[1])[2] or -1
return {given and 1 or 2, fence, listeners, now}
