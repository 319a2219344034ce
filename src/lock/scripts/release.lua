-- Gives a lock back on this node and tells those who wait for it.
-- KEYS[1]  the lock's key          KEYS[2]  the key of its fence and claim
-- ARGV[1]  token                   ARGV[2]  who gives it back
-- ARGV[3]  the grant's claim behind a blank
-- ARGV[4]  only if another proxy has made the grant, and may be putting it back: for how
--          long the node refuses that, in ms
-- Answer: listeners, released: a plain number costs the node less than a table;
--         {0, 0, 0} not held by this grant.
-- Listeners are subscribers of the lock's channel; -1: PUBLISH was refused.
-- What stands at KEYS[2] is told in acquire.lua.
if ARGV[4] then
  -- An ACL without this key must not keep the lock from being given back.
  ask('SET', 'lockgate:ended:' .. beside, ARGV[3], 'PX', ARGV[4])
end
-- A key of another type is nobody's that we know.
local found = {redis.pcall('GET', KEYS[1]), redis.call('GET', KEYS[2])}
if found[1] ~= ARGV[1] then
  return {0, 0, 0}
end
local stored = found[2] or '0 -'
if not string.find(stored, ARGV[3], 1, true) and not string.find(stored, '^%d+ ?%-?$') then
  return {0, 0, 0}
end
redis.call('DEL', KEYS[1])
-- An ACL without the channel must not keep the lock from being given back.
local listeners = wake(ARGV[2])
if type(listeners) ~= 'number' then
  listeners = -1
end
return listeners
