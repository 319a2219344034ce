-- Gives a lock back on this node and tells those who wait for it.
-- KEYS[1]  the lock's key          ARGV[1]  token, ARGV[2]  who gives it back
-- Answer: {1, 0, listeners} released; {0, 0, 0} not held by this token.
-- Listeners are subscribers of the lock's channel; -1: PUBLISH was refused.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return {0, 0, 0}
end
redis.call('DEL', KEYS[1])
-- An ACL without the channel must not keep the lock from being given back.
local listeners = redis.pcall('PUBLISH', 'lockgate:free:' .. KEYS[1], ARGV[2])
if type(listeners) ~= 'number' then
  listeners = -1
end
return {1, 0, listeners}
