-- Carries writes out, in order, if the data node has seen no other fences than theirs.
-- KEYS     the keys of the largest fences seen
-- ARGV     the fences, one for each key; then of each write how many words it has, and
--          its words
-- Answer: the reply to the write if there is one; else an array of their replies. That
-- ends before a write that failed, and behind one whose reply is large or a number too
-- large for Lua; what is missing is for another call. Any error means that nothing was
-- written, and that the first write is to go the longer way, which words the error.
local n = #KEYS
for i = 1, n do
  if redis.call('GET', KEYS[i]) ~= ARGV[i] then
    return redis.error_reply('FENCE is another')
  end
end
local from, last, replies, count = n + 1, #ARGV, {}, 0
while true do
  local to = from + ARGV[from]
  local reply = redis.pcall(unpack(ARGV, from + 1, to))
  local kind, ends = type(reply), to == last
  if kind == 'table' and reply.err then
    return count > 0 and replies or reply
  end
  if kind == 'number' and math.abs(reply) >= 2 ^ 53 then
    local read
    if ARGV[from + 1]:upper() == 'HINCRBY' then
      read = redis.pcall('HGET', ARGV[from + 2], ARGV[from + 3])
    else
      read = redis.pcall('GET', ARGV[from + 2])
    end
    -- It is written, whether it may be read or not.
    reply, ends = redis.status_reply('INTEGER ' .. (type(read) == 'string' and read or '')), true
  end
  if count == 0 and to == last then
    return reply
  end
  count = count + 1
  replies[count] = reply
  if ends or kind == 'string' and #reply > 4096 then
    return replies
  end
  from = to + 1
end
