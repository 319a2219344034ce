-- Commands and LOCK through the proxy by redis-lua, as ../README.md says.
local redis = require("redis")
local socket = require("socket")

redis.commands.lock = redis.command("LOCK")
local what, port, name, wait = arg[1], tonumber(arg[2]), arg[3], arg[4]
local client = redis.connect("127.0.0.1", port)

local function check(what, got, wanted)
  assert(got == wanted, what .. ": " .. tostring(got):sub(1, 200))
end

local function data()
  local replies = client:pipeline(function(pipeline)
    for _ = 1, 1000 do pipeline:incr(name .. ":n") end
  end)
  check("a pipeline", replies[1000], 1000)

  replies = client:transaction(function(transaction)
    transaction:set(name .. ":a", 1)
    transaction:incr(name .. ":a")
  end)
  check("MULTI", replies[2], 2)

  check("BLPOP", client:blpop(name .. ":list", 0)[2], "pushed")

  local large = ("0123456789abcdef"):rep(500000)
  client:set(name .. ":large", large)
  check("a large value", client:get(name .. ":large"), large)

  local bytes = {}
  for byte = 0, 255 do bytes[#bytes + 1] = string.char(byte) end
  bytes = table.concat(bytes)
  client:set(name .. bytes, bytes)
  check("a binary value", client:get(name .. bytes), bytes)

  -- On a connection of its own: redis-lua does not read the reply to its last UNSUBSCRIBE.
  local heard
  for message, stop in redis.connect("127.0.0.1", port):pubsub({ subscribe = name }) do
    if message.kind == "message" then
      heard = message.payload
      stop()
    end
  end
  check("a message", heard, "said")
end

local function outcome(command, ...)
  local is_good, reply = pcall(command, client, ...)
  if not is_good then return "error: " .. tostring(reply) end
  return reply == nil and "null" or "answered"
end

local function say(text)
  print(text)
  io.stdout:flush()
end

if what == "data" then
  data()
elseif what == "loss" then
  assert(client:lock(name, "token"), "not granted")
  say("held")
  io.read()
  for _ = 1, 2 do say(outcome(client.get, name)) end
elseif what == "ask" then
  local start = socket.gettime()
  local said = outcome(client.lock, name, "asks", "PX", 20000, "WAIT", wait)
  say(("%.1f %s"):format(socket.gettime() - start, said))
elseif what == "idle" then
  client:ping()
  say("ready")
  io.read()
  for _ = 1, 2 do say(outcome(client.ping)) end
end
