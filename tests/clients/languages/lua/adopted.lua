-- A lock as programs in Lua have it on one Redis, by redis-lua: SET NX PX, and a script that compares and deletes.
--
--     adopted.lua count PORT NAME TIMES    adds one to NAME:count under the lock lock:NAME, TIMES times
--     adopted.lua hold PORT NAME           takes lock:NAME, says "held", and keeps it until it is killed
local redis = require("redis")
local socket = require("socket")

local what, port, name, times = arg[1], tonumber(arg[2]), arg[3], arg[4]
local client = redis.connect("127.0.0.1", port)
local key = "lock:" .. name
local script = [[
if redis.call("GET", KEYS[1]) == ARGV[1] then
  return redis.call("DEL", KEYS[1])
else
  return 0
end
]]

local function take()
  local random = assert(io.open("/dev/urandom", "rb"))
  local token = random:read(16):gsub(".", function(byte) return ("%02x"):format(byte:byte()) end)
  random:close()
  while not client:set(key, token, "NX", "PX", 5000) do
    socket.sleep(0.05)
  end
  return token
end

if what == "hold" then
  take()
  print("held")
  io.stdout:flush()
  while true do socket.sleep(1) end
end
for _ = 1, tonumber(times) do
  local token = take()
  local count = tonumber(client:get(name .. ":count") or 0)
  socket.sleep(0.005)
  client:set(name .. ":count", count + 1)
  local released = client:eval(script, 1, key, token)
  assert(released == 1, "release: " .. tostring(released))
end
