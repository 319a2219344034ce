-- Tells by which grant a token is a reader of a lock on this node, and for how long. Changes nothing.
-- KEYS[1]  the lock's key          KEYS[2]  the key of its fence and claim
-- ARGV[1]  token
-- ARGV[2]  what the marker must be ("": anything)
-- Answer: {1, remaining time in ms, claim, token} one reader has the token;
--         {1, 0, 0, ''} several have it;
--         {0, 0, 0, ''} none has it;
--         {3, 0, 0, ''} the marker is another: this node does not vote.
if ARGV[2] ~= '' and redis.call('GET', place) ~= ARGV[2] then
  return {3, 0, 0, ''}
end
local now = mark(KEYS[1]) and time()
if not now then
  return {0, 0, 0, ''}
end
local found = {0, 0, 0, ''}
local readers = redis.call('ZRANGEBYSCORE', KEYS[1], text(now), '+inf', 'WITHSCORES')
for i = 1, #readers, 2 do
  -- Claims have sixteen digits.
  if string.sub(readers[i], 18) == ARGV[1] then
    if found[1] == 1 then
      return {1, 0, 0, ''}
    end
    found = {1, tonumber(readers[i + 1]) - now, tonumber(string.sub(readers[i], 1, 16)), ARGV[1]}
  end
end
return found
