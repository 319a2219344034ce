-- Carries writes out, in order, if the data node has seen no other fences than theirs.
-- KEYS     the keys of the largest fences seen, in database 0
-- ARGV     the fences, one for each key; the database that the writes are for, '' if it
--          is 0; then of each write how many words it has (none: it is the last), and
--          its words
-- Answer: the reply to the write if there is one; else an array of their replies. That
-- ends before a write that failed, and behind one whose reply is large or a number too
-- large for Lua; what is missing is for another call. Any error means that nothing was
-- written, and that the first write is to go the longer way, which words the error.
local n = #KEYS
local database = ARGV[n + 1]
if database ~= '' then
  redis.call('SELECT', 0)
end
for i = 1, n do
  if redis.call('GET', KEYS[i]) ~= ARGV[i] then
    return redis.error_reply('FENCE is another')
  end
end
if database ~= '' then
  redis.call('SELECT', database)
end
local at, replies = n + 2, nil
repeat
  local to = ARGV[at] ~= '' and at + ARGV[at] or nil
  local reply = redis.pcall(unpack(ARGV, at + 1, to))
  local kind = type(reply)
  if kind == 'number' and math.abs(reply) >= 2 ^ 53 then
    local exact
    if ARGV[at + 1]:upper() == 'HINCRBY' then
      exact = redis.pcall('HGET', ARGV[at + 2], ARGV[at + 3])
    else
      exact = redis.pcall('GET', ARGV[at + 2])
    end
    -- It is written, whether it may be read or not.
    kind, reply = 'exact', redis.status_reply('INTEGER ' .. (type(exact) == 'string' and exact or ''))
  end
  if not to and not replies then
    return reply
  elseif kind == 'table' and reply.err then
    return replies or reply
  end
  replies = replies or {}
  replies[#replies + 1] = reply
  at = to and to + 1
until not to or kind == 'exact' or kind == 'string' and #reply > 4096
return replies
