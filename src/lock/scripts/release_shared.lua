-- Takes a reader from a lock on this node, or all of them. With the last one gone, tells those who wait.
-- KEYS[1]  the lock's key          KEYS[2]  the key of its fence and claim
-- ARGV[1]  token ("": all readers, whatever their tokens)
-- ARGV[2]  who gives it back
-- ARGV[3]  the grant's claim
-- ARGV[4]  only if another proxy has made the grant, and may be putting it back: for how
--          long the node refuses that, in ms
-- Answer: listeners, released (-1: not counted, as readers are left or PUBLISH was refused);
--         {0, 0, 0} not held by this grant, or by none.
-- Intents stay: the writers that wait come before new readers.
local now = mark(KEYS[1]) and time()
local readers = {ARGV[3] .. ' ' .. ARGV[1]}
if ARGV[1] == '' then
  readers = now and redis.call('ZRANGEBYSCORE', KEYS[1], text(now), '+inf') or {}
end
local held = false
for _, reader in ipairs(readers) do
  if ARGV[4] then
    -- Claims have sixteen digits. An ACL without this key must not keep the lock from being given back.
    ask('SET', 'lockgate:ended:' .. beside .. ' ' .. string.sub(reader, 1, 16), '', 'PX', ARGV[4])
  end
  if now then
    held = ends(KEYS[1], reader, now) or held
    redis.call('ZREM', KEYS[1], reader)
  end
end
local is_read = now and settle(KEYS[1], now)
if not held then
  return {0, 0, 0}
end
local listeners = not is_read and wake(ARGV[2])
if type(listeners) ~= 'number' then
  listeners = -1
end
return listeners
