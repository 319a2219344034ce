-- Counts those who wait for the lock; -1: that was refused. NUMSUB would count on one node of a cluster. A node beside
-- the cluster may be older than Redis 7.
local function waiters()
  local count = redis.REDIS_VERSION_NUM and 'SHARDNUMSUB' or 'NUMSUB'
  return redis.pcall('PUBSUB', count, 'lockgate:free:' .. beside)[2] or -1
end
