-- Proclaim a value, if we lead. It is kept beside the lock's owner, and goes with it. One that comes late changes
-- nothing.
--
-- KEYS: 1 lock, 2 its owner's description, 3 tokens
-- ARGV: 1 owner, 2 value, 3 the observers' channel, 4 its number, which grows
-- Answers 1, or 0 if we lead no more.

if redis.call("HEXISTS", KEYS[1], ARGV[1]) == 0 or redis.call("HGET", KEYS[2], "holder") ~= ARGV[1] then return 0 end
local last = "said by " .. ARGV[1]
if (tonumber(redis.call("HGET", KEYS[2], last)) or 0) > tonumber(ARGV[4]) then return 1 end
redis.call("HSET", KEYS[2], last, ARGV[4])
-- The first value has the token as its revision, and each later one a greater number.
local again = redis.call("HGET", KEYS[2], "speaker") == ARGV[1]
local revision = again and redis.call("HINCRBY", KEYS[3], "token", 1) or redis.call("HGET", KEYS[2], "token")
redis.call("HSET", KEYS[2], "said", ARGV[2], "speaker", ARGV[1], "revision", revision)
redis.pcall("PUBLISH", ARGV[3], "0")
return 1
