-- Give the lock back, if it is still ours, and tell the waiters. Deletes nothing of others.
--
-- KEYS: 1 lock, 2 its owner's description
-- ARGV: 1 owner, 2 the waiters' channel
-- Answers 1, or 0 if it is not ours any more.

if redis.call("HDEL", KEYS[1], ARGV[1]) == 0 then return 0 end
redis.call("DEL", KEYS[2])
redis.pcall("PUBLISH", ARGV[2], "0")  -- Redisson's word for "it is free"
return 1
