-- Writes a marker, unless a larger ballot was promised or something has changed since.
-- KEYS[1]  the marker   KEYS[2]  the ballots   KEYS[3]  the note of who waits
-- KEYS[4]  who sits where   KEYS[5]  the longest PX
-- ARGV[1]  ballot
-- ARGV[2]  the marker, ARGV[3]  who sits where, as they were seen
-- ARGV[4]  the note as it was seen, where who waits is admitted ('': whatever it is)
-- ARGV[5]  marker, ARGV[6]  longest PX in ms, ARGV[7]  who sits where, to be written
-- ARGV[8]  who waits from now on, in which epoch ('': nobody)
-- Answer: {1} written; {0} something has changed since; {2} a larger ballot came before.
local marker = redis.call('GET', KEYS[1]) or ''
local seats = marker ~= '' and redis.call('GET', KEYS[4]) or ''
if marker ~= ARGV[2] or seats ~= ARGV[3] then
  return {0}
end
if ARGV[4] ~= '' and redis.call('GET', KEYS[3]) ~= ARGV[4] then
  return {0}
end
local promised = string.match(redis.call('GET', KEYS[2]) or '', '^(%d+) %d+$')
if promised and promised > ARGV[1] then
  return {2}
end
local longest = tonumber(redis.call('GET', KEYS[5]) or -1)
if longest < tonumber(ARGV[6]) then
  redis.call('SET', KEYS[5], ARGV[6])
end
redis.call('SET', KEYS[4], ARGV[7])
redis.call('SET', KEYS[1], ARGV[5])
redis.call('SET', KEYS[2], ARGV[1] .. ' ' .. ARGV[1])
if ARGV[4] ~= '' then
  redis.call('DEL', KEYS[3])
end
if ARGV[8] ~= '' then
  -- An ACL may forbid TIME.
  local time = redis.pcall('TIME')
  local since = '0'
  if time[1] and time[2] then
    since = string.format('%d%06d', time[1], time[2])
  end
  redis.call('SET', KEYS[3], ARGV[8] .. ' ' .. since)
end
return {1}
