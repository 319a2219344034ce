-- Tries each command that the scripts of bridged locks send, in ways that change nothing. KEYS: a key
-- of a bridged rule. Returns the name of each command that failed, and its error behind it.
local failed = {}
-- Returns what the command says; nothing if it fails otherwise than `usual`.
local function try(usual, name, ...)
  local said = redis.pcall(name, ...)
  if type(said) ~= 'table' or not said.err then
    return said
  end
  if not usual or not string.find(said.err, usual, 1, true) then
    failed[#failed + 1] = name
    failed[#failed + 1] = said.err
    return nil
  end
  return said
end
try(nil, 'select', 0)
local holder = try('WRONGTYPE', 'get', KEYS[1])
try(nil, 'pttl', KEYS[1])
-- A syntax error, found only behind the ACL's check.
try('syntax error', 'set', KEYS[1], 'x', 'NX', 'XX')
-- A DEL changes nothing only where there is no key.
local there = try(nil, 'exists', KEYS[1])
if there == 0 or holder == false then
  try(nil, 'del', KEYS[1])
end
return failed
