-- Take the lock if it is free. The lock is stored as Redisson's RLock: a hash with one field, whose name is the owner
-- and whose value is how often it has acquired the lock. So Redisson's users and ours keep each other out; only the
-- token and our description are additions.
--
-- KEYS: 1 lock, 2 tokens, 3 its owner's description, for people
-- ARGV: 1 TTL (ms), 2 owner, 3 who that is, as JSON, 4 token source id to use if none is stored
-- Answers {token, source}, or {0, the rest of the TTL (ms; below 0: it has none)} if somebody has it.

local token = redis.call("HEXISTS", KEYS[1], ARGV[2]) == 1 and redis.call("HGET", KEYS[3], "token")
if token then
  -- We have it, by a try whose answer was lost.
  redis.call("PEXPIRE", KEYS[1], ARGV[1])
  redis.call("PEXPIRE", KEYS[3], ARGV[1])
  return {tonumber(token), redis.call("HGET", KEYS[2], "source")}
end
if redis.call("EXISTS", KEYS[1]) == 1 then return {0, redis.call("PTTL", KEYS[1])} end
redis.call("HSET", KEYS[1], ARGV[2], 1)
redis.call("PEXPIRE", KEYS[1], ARGV[1])
redis.call("HSETNX", KEYS[2], "source", ARGV[4])
token = redis.call("HINCRBY", KEYS[2], "token", 1)
redis.call("HSET", KEYS[3], "who", ARGV[3], "token", token, "holder", ARGV[2])
redis.call("PEXPIRE", KEYS[3], ARGV[1])
return {token, redis.call("HGET", KEYS[2], "source")}
