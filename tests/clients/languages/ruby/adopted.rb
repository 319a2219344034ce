# A lock as programs in Ruby have it on one Redis, by redis-rb: SET NX PX, and a script that compares and deletes.
#
#     adopted.rb simple|redlock count PORT NAME TIMES    adds one to NAME:count under lock:NAME, TIMES times
#     adopted.rb simple|redlock hold PORT NAME           takes lock:NAME, says "held", and keeps it until it is killed
#
# With "redlock" it sends what redlock-rb sends, whose lock is taken by a script too.

require "redis"
require "securerandom"

TTL = 5_000
RELEASE = <<~LUA
  if redis.call("get", KEYS[1]) == ARGV[1] then
    return redis.call("del", KEYS[1])
  else
    return 0
  end
LUA
# The scripts of redlock-rb 2.0, which a proxy with an enforced rule knows by their digests.
REDLOCK_TAKE = "ceb2b2062e40c51a2b3963fd078bc71f11bdc65c"
REDLOCK_RELEASE = "8e4905cee18e7c3188d10f2b8b170e403baed34f"

def take(key)
  token = SecureRandom.uuid
  if KIND == "redlock"
    sleep 0.05 until REDIS.evalsha(REDLOCK_TAKE, [key], [token, TTL, "yes"]) == "OK"
  else
    sleep 0.05 until REDIS.set(key, token, nx: true, px: TTL)
  end
  token
end

def release(key, token)
  redlock = KIND == "redlock"
  released = redlock ? REDIS.evalsha(REDLOCK_RELEASE, [key], [token]) : REDIS.eval(RELEASE, [key], [token])
  raise "release: #{released}" unless released == 1
end

KIND, what, port, name, times = ARGV
REDIS = Redis.new(port: port.to_i)
if what == "hold"
  take("lock:#{name}")
  puts "held"
  $stdout.flush
  sleep
end
times.to_i.times do
  token = take("lock:#{name}")
  count = REDIS.get("#{name}:count").to_i
  sleep 0.005
  REDIS.set("#{name}:count", count + 1)
  release("lock:#{name}", token)
end
