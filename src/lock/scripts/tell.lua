-- Tells which locks this node has, with their fences, a part at a time.
-- KEYS[1]  the marker
-- ARGV[1]  what the marker must be ('': there is none)   ARGV[2]  locks.prefix
-- ARGV[3]  where to go on ('0': from the beginning); '': with the locks from ARGV[4] on
-- Answer: {where to go on ('0': no more), key, token, remaining TTL in ms, what stands at the key of
--         its fence, which claim was released through another proxy, key, …}; what is not there is
--         ''. A remaining TTL of -2: the lock is free; of -1: it has none. A token of '' is nobody's.
--         {}: the marker is another.
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then
  return {}
end
local prefix, fences = ARGV[2], 'lockgate:fence:'
local locks, answer = {}, {'0'}
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
    elseif string.sub(key, 1, #prefix) == prefix and string.sub(key, 1, 9) ~= 'lockgate:' then
      locks[#locks + 1] = key
    end
  end
end
for _, key in ipairs(locks) do
  -- A key of another type is held, by nobody that we know.
  local token, left = redis.pcall('GET', key), redis.call('PTTL', key)
  if type(token) ~= 'string' or #token > 32768 then
    token = ''
  end
  answer[#answer + 1] = key
  answer[#answer + 1] = token
  answer[#answer + 1] = tostring(left)
  answer[#answer + 1] = redis.call('GET', fences .. key) or ''
  answer[#answer + 1] = redis.call('GET', 'lockgate:ended:' .. key) or ''
end
return answer
