-- Another TTL for the lock, if it is still ours.
-- KEYS: 1 lock   ARGV: 1 TTL (ms), 2 what is kept there if it is ours
if redis.call("GET", KEYS[1]) ~= ARGV[2] then return 0 end
return redis.call("PEXPIRE", KEYS[1], ARGV[1])
