-- Takes a lock on this node and gives it the next fence.
-- KEYS[1]  the lock's key          KEYS[2]  the key of its fence and claim
-- ARGV[1]  token                   ARGV[2]  TTL in ms
-- ARGV[3]  proposed fence          ARGV[4]  TTL of the fence in ms
-- ARGV[5]  the grant's claim       ARGV[6]  "1": only where the same claim has it; a longer
--          number: the writer waits, and leaves an intent among readers, which may bar new ones
--          for that time in ms
-- ARGV[7]  what the marker must be ("": anything)
-- Answer: fence, granted: a plain number costs the node less than a table; a TTL that is
--         longer already stays;
--         {0, remaining TTL in ms, claim} held (-1: without a TTL), or not by this claim (-2:
--         free). The claim is that of a grant to the same token (1: none is stored), or 0:
--         another token has it;
--         {3, 0} the marker is another: this node does not vote;
--         {4, 0} the fence has come to its end;
--         {5, time in ms after which to ask again, 0} held by readers.
-- At KEYS[2] stands "fence claim", or "largest/fence claim" where others' failed
-- attempts had left a larger fence than the grant's: the next grant's fence must
-- exceed the largest. Claims have sixteen digits.
local found = {redis.call('GET', KEYS[2]), redis.call('GET', place)}
if found[2] ~= ARGV[7] and ARGV[7] ~= '' then
  return {3, 0}
end
local fence, value = tonumber(ARGV[3]), ARGV[3]
local stored = found[1] and tonumber(string.match(found[1], '^%d+')) or 0
if stored >= fence then
  fence = stored + 1
  value = string.format('%.0f', fence)
end
-- Lua's numbers are exact up to 2^53.
if fence >= 9007199254740991 then
  return {4, 0}
end
local function held(left)
  if redis.pcall('GET', KEYS[1]) ~= ARGV[1] then
    return {0, left, 0}
  end
  return {0, left, tonumber(string.match(found[1] or '', ' (%d+)$')) or 1}
end
if ARGV[6] ~= '1' then
  -- A key of another type than a string is held too, but for a set without readers.
  if not redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2], 'NX') then
    local left = redis.call('PTTL', KEYS[1])
    local score = type(redis.pcall('GET', KEYS[1])) == 'table' and redis.pcall('ZSCORE', KEYS[1], 'lockgate')
    if type(score) ~= 'string' or tonumber(score) > -1e15 then
      return held(left)
    end
    -- A set of readers: readers.lua tells what stands there.
    local told = redis.call('TIME')
    local now = told[1] * 1000 + math.floor(told[2] / 1000)
    local clock = string.format('%.0f', now)
    local last = tonumber(redis.call('ZREVRANGE', KEYS[1], 0, 0, 'WITHSCORES')[2])
    if last >= now then
      if ARGV[6] ~= '' then
        redis.call('ZREMRANGEBYSCORE', KEYS[1], '(-' .. clock, '(' .. clock)
        redis.call('ZADD', KEYS[1], string.format('%.0f', -now - 1000), 'w ' .. ARGV[1])
        -- Intents bar for a time, and then for as long not, so that no writers keep readers out for ever.
        local since = -1e15 - score
        if math.abs(now - since) >= 2 * ARGV[6] then
          redis.call('ZADD', KEYS[1], string.format('%.0f', -1e15 - now), 'lockgate')
        end
        if left >= 0 and left < 1001 then
          redis.call('PEXPIRE', KEYS[1], 1001)
        end
      end
      -- A reader may go at any time, and an intent is renewed twice in its time. The key's TTL does not tell when the
      -- last reader ends: it is an intent's where that ends later.
      return {5, math.min(500, last - now + 1), 0}
    end
    redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
  end
else
  -- Where the key is free, the grant may have been released through another proxy, whose
  -- release is still on its way to other nodes and would end the grant there.
  local left = redis.call('PTTL', KEYS[1])
  local claim = string.match(found[1] or '', ' (.*)$') or '-'
  if redis.pcall('GET', KEYS[1]) ~= ARGV[1] or claim ~= ARGV[5] and claim ~= '-' then
    return held(left)
  end
  -- Its holder may still count on the grant before, should this one fail.
  if left < tonumber(ARGV[2]) then
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
  end
end
redis.call('SET', KEYS[2], value .. ' ' .. ARGV[5], 'PX', ARGV[4])
return fence
