-- Give the lock back if it is ours, or our place in the line, and tell the first waiter that it is free
-- (fair_line.lua comes before this).
--
-- KEYS: 1 lock, 2 name of the owner, 3 line, 4 times, 5 names of ours in the line
-- ARGV: 1 owner, 2 channel, to which each waiter adds ":" and its own name
-- Answers 1 if the lock was ours, else 0.

local held = redis.pcall("HDEL", KEYS[1], ARGV[1])  -- an error if something else was written over the lock
if held == 1 then redis.call("DEL", KEYS[2]) end
redis.call("LREM", KEYS[3], 0, ARGV[1])
redis.call("ZREM", KEYS[4], ARGV[1])
redis.call("HDEL", KEYS[5], ARGV[1])
local first = first_alive(KEYS[3], KEYS[4], KEYS[5])
if first and redis.call("EXISTS", KEYS[1]) == 0 then redis.pcall("PUBLISH", ARGV[2] .. ":" .. first, "0") end
return held
