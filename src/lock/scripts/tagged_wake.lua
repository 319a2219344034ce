-- Tells those who wait for the lock, and returns how many have heard of it: a plain message would go to every node of
-- a cluster. A node beside the cluster may be older than Redis 7, which has sharded channels and this version number.
local function wake(who)
  local publish = redis.REDIS_VERSION_NUM and 'SPUBLISH' or 'PUBLISH'
  return redis.pcall(publish, 'lockgate:free:' .. beside, who)
end
