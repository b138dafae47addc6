-- Give the lock another TTL, if it is still ours.
-- KEYS: 1 lock   ARGV: 1 TTL (ms), 2 our value
if redis.call("GET", KEYS[1]) ~= ARGV[2] then return 0 end
return redis.call("PEXPIRE", KEYS[1], ARGV[1])
