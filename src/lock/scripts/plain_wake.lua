-- Tells those who wait for the lock, and returns how many have heard of it.
local function wake(who)
  return redis.pcall('PUBLISH', 'lockgate:free:' .. beside, who)
end
