-- Take the lock away from whoever has it, write down who did, and tell those who wait.
--
-- KEYS: 1 lock, 2 who owns it, 3 who took it away last, 4 queue, if there is one
-- ARGV: 1 who takes it, as JSON, 2 channel, to which each waiter of a queue adds ":" and its own name, 3 for how
-- many seconds the first of these is kept
-- Answers {owner, who that is, token}; nothing if nobody has it.

local owner = redis.call("HKEYS", KEYS[1])[1]
if not owner then return {} end
local known = redis.call("HMGET", KEYS[2], "who", "token", "holder")
redis.call("DEL", KEYS[1], KEYS[2])
redis.call("SET", KEYS[3], ARGV[1], "EX", ARGV[3])
local first = redis.call("LINDEX", KEYS[4], 0)
redis.call("PUBLISH", first and (ARGV[2] .. ":" .. first) or ARGV[2], "0")
if known[3] ~= owner then known = {"", "0"} end
return {owner, known[1] or "", known[2] or "0"}
