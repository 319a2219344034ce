-- Counts those who wait for the lock; -1: that was refused.
local function waiters()
  return redis.pcall('PUBSUB', 'NUMSUB', 'lockgate:free:' .. beside)[2] or -1
end
