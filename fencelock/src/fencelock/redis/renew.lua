-- Give the lock another TTL, if it is still ours.
--
-- KEYS: 1 lock, 2 its owner's description
-- ARGV: 1 TTL (ms), 2 owner
-- Answers 1, or 0 if it is not ours any more.

if redis.call("HEXISTS", KEYS[1], ARGV[2]) == 0 then return 0 end
redis.call("PEXPIRE", KEYS[1], ARGV[1])
redis.call("PEXPIRE", KEYS[2], ARGV[1])
return 1
