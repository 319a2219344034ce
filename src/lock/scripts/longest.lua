-- Notes the longest TTL that was ever stored on this node: once it has forgotten its
-- locks, it must not vote for so long.
-- KEYS[1]  where it stands
-- ARGV[1]  a TTL in ms that is about to be stored
if tonumber(redis.call('GET', KEYS[1]) or 0) < tonumber(ARGV[1]) then
  redis.call('SET', KEYS[1], ARGV[1])
end
return {1, 0}
