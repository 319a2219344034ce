-- The set of a lock's readers: a sorted set at the lock's key. Its members:
-- 'lockgate'      marks the set: no other sorted set is taken for one. Its score is -1e15, less the time since when
--                 intents bar new readers, if they have;
-- 'claim token'   a reader, with the time at which it ends;
-- 'w token'       the intent of a writer that waits, with the time at which it ends, as a negative number.
-- All times are this node's, in ms since 1970. Where TIME is forbidden a script fails, and the node does not vote.
local function time()
  local told = redis.call('TIME')
  return told[1] * 1000 + math.floor(told[2] / 1000)
end
local function text(number)
  return string.format('%.0f', number)
end
-- Returns the score of the mark; false: the key is free; nil: what is there is no such set.
local function mark(key)
  local score = redis.pcall('ZSCORE', key, 'lockgate')
  if type(score) == 'string' and tonumber(score) <= -1e15 then
    return tonumber(score)
  end
  if not score and redis.call('EXISTS', key) == 0 then
    return false
  end
  return nil
end
-- Returns when a reader ends; nil: there is none by this name, or it has ended.
local function ends(key, member, now)
  local score = redis.pcall('ZSCORE', key, member)
  if type(score) == 'string' and tonumber(score) >= now then
    return tonumber(score)
  end
  return nil
end
-- Drops the members that have ended.
local function drop_ended(key, now)
  redis.call('ZREMRANGEBYSCORE', key, '(' .. text(-now), '(' .. text(now))
end
-- Has the set last as long as its last member: the TTL becomes shorter where that has gone. Returns whether a reader
-- is left.
local function settle(key, now)
  local function lowest()
    return tonumber(redis.call('ZRANGE', key, 1, 1, 'WITHSCORES')[2]) or 0
  end
  local intent = 0
  -- Most sets have no intents and no reader that has ended: then the first behind the mark is a reader that lasts.
  if lowest() < now then
    drop_ended(key, now)
    intent = -lowest()
  end
  local reader = tonumber(redis.call('ZREVRANGE', key, 0, 0, 'WITHSCORES')[2]) or 0
  local last = math.max(reader, intent)
  if last > 0 then
    redis.call('PEXPIREAT', key, text(last + 1))
  else
    redis.call('DEL', key)
  end
  return reader > 0
end
