-- Notes on a node that waits how long grants may last, and since when it waits, by its own clock.
-- KEYS[1]  the note                 KEYS[2]  how long grants may last
-- ARGV[1]  the note as it was seen ('': none)   ARGV[2]  who waits, in which epoch ('': no note is due)
-- ARGV[3]  how long grants may last, in ms
-- Answer: {1} noted; {0} another proxy has noted something meanwhile.
-- A proxy that meets the node next may know of shorter grants alone. An ACL may forbid this key.
local longest = redis.pcall('GET', KEYS[2])
if type(longest) ~= 'table' and (tonumber(longest or 0) or 0) < tonumber(ARGV[3]) then
  redis.pcall('SET', KEYS[2], ARGV[3])
end
if ARGV[2] == '' then
  return {1}
end
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
