-- Write down a value that outlasts the lead, if we lead.
--
-- KEYS: 1 lock, 2 record
-- ARGV: 1 owner, 2 what is written
-- Answers 1, or 0 if we lead no more.

if redis.call("HEXISTS", KEYS[1], ARGV[1]) == 0 then return 0 end
redis.call("SET", KEYS[2], ARGV[2])
return 1
