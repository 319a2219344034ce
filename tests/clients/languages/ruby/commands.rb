# Commands and LOCK through the proxy by redis-rb, as ../README.md says.

require "redis"

def check(what, got, wanted)
  abort "#{what}: #{got.inspect[0, 200]} instead of #{wanted.inspect[0, 200]}" unless got == wanted
end

def data(redis, name)
  replies = redis.pipelined { |pipeline| 1000.times { pipeline.incr("#{name}:n") } }
  check "a pipeline", replies.last, 1000

  replies = redis.multi do |transaction|
    transaction.set("#{name}:a", "1")
    transaction.incr("#{name}:a")
  end
  check "MULTI", replies, ["OK", 2]

  check "BLPOP", redis.blpop("#{name}:list", timeout: 0), ["#{name}:list", "pushed"]

  large = "0123456789abcdef" * 500_000
  redis.set("#{name}:large", large)
  check "a large value", redis.get("#{name}:large"), large

  bytes = (0..255).to_a.pack("C*")
  redis.set(name.b + bytes, bytes)
  check "a binary value", redis.get(name.b + bytes).b, bytes

  redis.subscribe(name) do |on|
    on.message do |_, message|
      check "a message", message, "said"
      redis.unsubscribe
    end
  end
  check "PING", redis.ping, "PONG"
end

def outcome
  yield.nil? ? "null" : "answered"
rescue Redis::BaseError => error
  "error: #{error.message.lines.first&.chomp} (#{error.class})"
end

$stdout.sync = true
what, port, name, wait = ARGV
redis = Redis.new(port: port.to_i)
case what
when "data"
  data(redis, name)
when "loss"
  redis.call("LOCK", name, "token") or abort "not granted"
  puts "held"
  $stdin.gets
  2.times { puts outcome { redis.get(name) } }
when "ask"
  start = Process.clock_gettime(Process::CLOCK_MONOTONIC)
  said = outcome { redis.call("LOCK", name, "asks", "PX", 20_000, "WAIT", wait) }
  puts format("%.1f %s", Process.clock_gettime(Process::CLOCK_MONOTONIC) - start, said)
when "idle"
  redis.ping
  puts "ready"
  $stdin.gets
  2.times { puts outcome { redis.ping } }
end
