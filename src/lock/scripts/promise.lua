-- Promises a ballot: this node accepts no smaller one any more.
-- KEYS[1]  the marker   KEYS[2]  the ballots   KEYS[3]  the note of who waits
-- KEYS[4]  who sits where   KEYS[5]  the longest PX
-- ARGV[1]  ballot
-- ARGV[2]  the marker, ARGV[3]  who sits where, as they were seen
-- ARGV[4]  the note as it was seen, where who waits is to be admitted ('': whatever it is)
-- Answer: {1} promised; {0} something has changed since; {2} a larger ballot came before.
-- Ballots are digits, of one length.
local marker = redis.call('GET', KEYS[1]) or ''
local seats = marker ~= '' and redis.call('GET', KEYS[4]) or ''
if marker ~= ARGV[2] or seats ~= ARGV[3] then
  return {0}
end
if ARGV[4] ~= '' and redis.call('GET', KEYS[3]) ~= ARGV[4] then
  return {0}
end
local promised, accepted = string.match(redis.call('GET', KEYS[2]) or '', '^(%d+) (%d+)$')
if promised and promised >= ARGV[1] then
  return {2}
end
redis.call('SET', KEYS[2], ARGV[1] .. ' ' .. (accepted or '0'))
return {1}
