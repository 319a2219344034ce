-- Writes a proxy's record beside those of others, and returns these, one a line: when it ends in ms,
-- the proxy's id, and the record. KEYS: the records. ARGV: the proxy's id, its record, for how many ms
-- a record lasts, most records, and whether it is written where nobody else has written one.
local text = redis.call('GET', KEYS[1])
if not text and ARGV[5] ~= '1' then
  return ''
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local last = now + ARGV[3]
local others = {}
for till, id, record in string.gmatch(text or '', '(%d+) (%x+) ([^\n]*)\n') do
  till = tonumber(till)
  -- A clock that was set back would keep a record for long.
  if id ~= ARGV[1] and till > now and till <= last and #others < ARGV[4] - 1 then
    others[#others + 1] = string.format('%.0f %s %s\n', till, id, record)
  end
end
others = table.concat(others)
local own = string.format('%.0f %s %s\n', last, ARGV[1], ARGV[2])
redis.call('SET', KEYS[1], own .. others, 'PX', ARGV[3])
return others
