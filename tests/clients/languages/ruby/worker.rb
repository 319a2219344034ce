# Jobs of Sidekiq that are queued once, and that add one under a lock.
#
#     worker.rb push NAME         queues each of ten jobs three times, and prints how many were not there already
#     sidekiq -r worker.rb        runs them
#
# A job that is queued or runs has the lock lock:NAME:unique:N, taken by SET NX; the worker releases it. The work is
# done under lock:NAME. REDIS_URL says where both go.

require "securerandom"
require "sidekiq"

RELEASE = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end"

def unique(name, number)
  "lock:#{name}:unique:#{number}"
end

class AddOne
  include Sidekiq::Worker
  sidekiq_options retry: 0

  def perform(name, number, token)
    Sidekiq.redis do |redis|
      own = SecureRandom.uuid
      sleep 0.05 until redis.set("lock:#{name}", own, nx: true, ex: 30)
      count = redis.get("#{name}:count").to_i
      sleep 0.005
      redis.set("#{name}:count", count + 1)
      [["lock:#{name}", own], [unique(name, number), token]].each do |key, owner|
        released = redis.eval(RELEASE, [key], [owner])
        raise "release of #{key}: #{released}" unless released == 1
      end
    end
  end
end

if ARGV.first == "push"
  pushed = (0...30).count do |n|
    token = SecureRandom.uuid
    is_new = Sidekiq.redis { |redis| redis.set(unique(ARGV[1], n % 10), token, nx: true, ex: 60) }
    AddOne.perform_async(ARGV[1], n % 10, token) if is_new
    is_new
  end
  puts pushed
end
