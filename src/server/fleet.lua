-- Writes a proxy's record beside those of others, or looks whether these have changed. KEYS: the
-- records. ARGV: the proxy's id, its record ('': none is written), for how many ms a record lasts, most
-- records, most bytes of all, and the version of the records that the proxy knows.
-- Answer: {version}: none of the others has changed since that version; or {version, others}, these one a
-- line: when it ends in ms, the proxy's id, and the record.
local text = redis.call('GET', KEYS[1]) or ''
local version = string.match(text, '^=([^\n]*)\n') or ''
if ARGV[2] == '' and version == ARGV[6] then
  return {version}
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local last = now + ARGV[3]
local others, bytes, before = {}, #ARGV[2], nil
for till, id, record in string.gmatch(text, '(%d+) (%x+) ([^\n]*)\n') do
  till = tonumber(till)
  if id == ARGV[1] then
    before = record
  -- A clock that was set back would keep a record for long.
  elseif till > now and till <= last and #others < ARGV[4] - 1 and bytes + #record < tonumber(ARGV[5]) then
    others[#others + 1] = string.format('%.0f %s %s\n', till, id, record)
    bytes = bytes + #record
  end
end
others = table.concat(others)
if ARGV[2] ~= '' then
  if before ~= ARGV[2] then
    version = string.format('%s.%.0f', ARGV[1], now)
  end
  local own = string.format('%.0f %s %s\n', last, ARGV[1], ARGV[2])
  redis.call('SET', KEYS[1], '=' .. version .. '\n' .. own .. others, 'PX', ARGV[3])
end
return {version, others}
