-- Proclaim something, if we lead. What was said stands beside the lock's owner, and goes with that.
--
-- KEYS: 1 lock, 2 who owns it, 3 tokens
-- ARGV: 1 owner, 2 what is said, 3 channel of those who observe
-- Answers 1, or 0 if we lead no more.

if redis.call("HEXISTS", KEYS[1], ARGV[1]) == 0 or redis.call("HGET", KEYS[2], "holder") ~= ARGV[1] then return 0 end
-- The first word has the token's number, each one after that a greater one.
local again = redis.call("HGET", KEYS[2], "speaker") == ARGV[1]
local revision = again and redis.call("HINCRBY", KEYS[3], "token", 1) or redis.call("HGET", KEYS[2], "token")
redis.call("HSET", KEYS[2], "said", ARGV[2], "speaker", ARGV[1], "revision", revision)
redis.call("PUBLISH", ARGV[3], "0")
return 1
