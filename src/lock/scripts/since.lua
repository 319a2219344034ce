-- Notes on a node that waits since when it does, by its own clock.
-- KEYS[1]  the note
-- ARGV[1]  the note as it was seen ('': none)   ARGV[2]  who waits, in which epoch
-- Answer: {1} noted; {0} another proxy has noted something meanwhile.
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then
  return {0}
end
-- An ACL may forbid TIME.
local time = redis.pcall('TIME')
local since = '0'
if time[1] and time[2] then
  since = string.format('%d%06d', time[1], time[2])
end
redis.call('SET', KEYS[1], ARGV[2] .. ' ' .. since)
return {1}
