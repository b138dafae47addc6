-- Write down a value that outlasts the lead, if we lead. One that comes late changes nothing.
--
-- KEYS: 1 lock, 2 record, 3 the owner's description
-- ARGV: 1 owner, 2 what is written, 3 its number, which grows
-- Answers 1, or 0 if we lead no more.

if redis.call("HEXISTS", KEYS[1], ARGV[1]) == 0 then return 0 end
local last = "recorded by " .. ARGV[1]
if (tonumber(redis.call("HGET", KEYS[3], last)) or 0) > tonumber(ARGV[3]) then return 1 end
redis.call("HSET", KEYS[3], last, ARGV[3])
redis.call("SET", KEYS[2], ARGV[2])
return 1
