-- Tells which locks this node has, with their fences, a part at a time.
-- KEYS[1]  the marker
-- ARGV[1]  what the marker must be ('': there is none)   ARGV[2]  locks.prefix
-- ARGV[3]  where to go on ('0': from the beginning); '': with the locks from ARGV[4] on
-- Answer: {where to go on ('0': no more), key, token, remaining TTL in ms, what stands at the key of
--         its fence, which claim was released through another proxy, key, …}; what is not there is
--         ''. A remaining TTL of -2: the lock is free; of -1: it has none. A token of '' is nobody's.
--         Of a lock with readers, which no writer has, there are more rows behind it:
--         {…, key, 'claim token', remaining time in ms, '', 'reader', …} each reader;
--         {…, key, 'claim', '0', '', 'ended', …} each one that was released through another proxy.
--         {}: the marker is another.
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then
  return {}
end
local prefix, fences, notes = ARGV[2], 'lockgate:fence:', 'lockgate:ended:'
local locks, answer = {}, {'0'}
local function tell(key, token, left, fence, ended)
  for _, word in ipairs({key, token, tostring(left), fence, ended}) do
    answer[#answer + 1] = word
  end
end
if ARGV[3] == '' then
  for at = 4, #ARGV do
    locks[at - 3] = ARGV[at]
  end
else
  local page = redis.call('SCAN', ARGV[3], 'COUNT', 250)
  answer[1] = page[1]
  for _, key in ipairs(page[2]) do
    if string.sub(key, 1, #fences) == fences then
      locks[#locks + 1] = string.sub(key, #fences + 1)
    elseif string.sub(key, 1, #notes) == notes then
      -- As release_shared.lua notes it. Claims have sixteen digits.
      local lock, claim = string.match(key, '^' .. notes .. '(.+) (' .. string.rep('%d', 16) .. ')$')
      if lock and redis.call('GET', key) == '' then
        tell(lock, claim, 0, '', 'ended')
      end
    elseif string.sub(key, 1, #prefix) == prefix and string.sub(key, 1, 9) ~= 'lockgate:' then
      locks[#locks + 1] = key
    end
  end
end
for _, key in ipairs(locks) do
  local token, left, readers = redis.pcall('GET', key), redis.call('PTTL', key), {}
  local now = type(token) == 'table' and mark(key) and time()
  if now then
    -- Intents are written anew by the writers that wait.
    readers, left = redis.call('ZRANGEBYSCORE', key, text(now), '+inf', 'WITHSCORES'), -2
  end
  -- A key of another type is held, by nobody that we know.
  if type(token) ~= 'string' or #token > 32768 then
    token = ''
  end
  tell(key, token, left, redis.call('GET', fences .. key) or '', redis.call('GET', notes .. key) or '')
  for at = 1, #readers, 2 do
    tell(key, readers[at], text(readers[at + 1] - now), '', 'reader')
  end
end
return answer
