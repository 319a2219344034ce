-- Tells of a release by the stream of those that wait, where there is one.
local stream = 'lockgate:wake:' .. beside
-- The number of proxies that wait; -1: that was refused.
local function waiters()
  local groups = redis.pcall('XINFO', 'GROUPS', stream)
  if groups.err then
    return string.find(groups.err, 'no such key', 1, true) and 0 or -1
  end
  return groups[1] and groups[1][4] or 0
end
-- Wakes one of them. One entry suffices: it stays until somebody reads it.
local function wake(who)
  local added = redis.pcall('XADD', stream, 'NOMKSTREAM', 'MAXLEN', 1, '*', 'by', who)
  if type(added) == 'table' then
    return -1
  end
  return added and waiters() or 0
end
