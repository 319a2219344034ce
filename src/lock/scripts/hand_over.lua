-- Passes a lock on this node from one grant to the next, with the next fence.
-- KEYS[1]  the lock's key          KEYS[2]  the key of its fence and claim
-- ARGV[1]  token that gives        ARGV[2]  its claim
-- ARGV[3]  token that takes        ARGV[4]  TTL in ms
-- ARGV[5]  proposed fence          ARGV[6]  TTL of the fence in ms
-- ARGV[7]  the taker's claim
-- ARGV[8]  what the marker must be ("": anything)
-- Answer: {1, fence, listeners} passed on;
--         {2, fence, listeners} taken, but not from the grant that gives it;
--         {0, remaining TTL in ms, 0} held by another (-1: without a TTL);
--         {3, 0, 0} and {4, 0, 0} as in acquire.lua: nothing is done.
-- Listeners are subscribers of the lock's channel; -1: PUBSUB was refused.
-- What stands at KEYS[2] is told in acquire.lua.
-- A key of another type is nobody's that we know.
local found = {
  redis.pcall('GET', KEYS[1]), redis.call('GET', KEYS[2]), redis.call('GET', place),
}
if found[3] ~= ARGV[8] and ARGV[8] ~= '' then
  return {3, 0, 0}
end
local stored, claim = string.match(found[2] or '0 -', '^(%d+)[/%d]* ?(.*)$')
local given = found[1] == ARGV[1] and (claim == ARGV[2] or #claim < 2)
-- A set that has intents alone, and no readers, is as free as no key.
local is_free = not found[1]
if type(found[1]) == 'table' and mark(KEYS[1]) and not settle(KEYS[1], time()) then
  is_free = true
end
if not given and not is_free then
  return {0, redis.call('PTTL', KEYS[1]), 0}
end
local fence = math.max(tonumber(ARGV[5]), tonumber(stored) + 1)
if fence >= 9007199254740991 then
  return {4, 0, 0}
end
redis.call('SET', KEYS[1], ARGV[3], 'PX', ARGV[4])
redis.call('SET', KEYS[2], string.format('%.0f %s', fence, ARGV[7]), 'PX', ARGV[6])
local listeners = waiters()
return {given and 1 or 2, fence, listeners}
