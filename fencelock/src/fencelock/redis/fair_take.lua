-- Take the lock if it is free and it is our turn, else stand in the line (fair_line.lua comes before this).
--
-- KEYS: 1 lock, 2 tokens, 3 name of the owner, for people, 4 line, 5 times, 6 names of ours in the line
-- ARGV: 1 TTL (ms), 2 owner, 3 who that is, as JSON, 4 token source id to use if none is stored,
-- 5 the longest wait of one of Redisson's waiters (ms)
-- Answers {token, source}, or {0, the rest of the TTL (ms; below 0: it has none)} if it is not our turn.

local token = redis.call("HEXISTS", KEYS[1], ARGV[2]) == 1 and redis.call("HGET", KEYS[3], "token")
if token then
  -- We have it, by a try whose answer was lost.
  redis.call("PEXPIRE", KEYS[1], ARGV[1])
  redis.call("PEXPIRE", KEYS[3], ARGV[1])
  return {tonumber(token), redis.call("HGET", KEYS[2], "source")}
end

local first = first_alive(KEYS[4], KEYS[5], KEYS[6], ARGV[2])
if redis.call("EXISTS", KEYS[1]) == 0 and (not first or first == ARGV[2]) then
  if first then
    redis.call("LPOP", KEYS[4])
    redis.call("ZREM", KEYS[5], ARGV[2])
    redis.call("HDEL", KEYS[6], ARGV[2])
    first_alive(KEYS[4], KEYS[5], KEYS[6])  -- now it is the next one's time that counts
  end
  redis.call("HSET", KEYS[1], ARGV[2], 1)
  redis.call("PEXPIRE", KEYS[1], ARGV[1])
  redis.call("HSETNX", KEYS[2], "source", ARGV[4])
  token = redis.call("HINCRBY", KEYS[2], "token", 1)
  redis.call("HSET", KEYS[3], "who", ARGV[3], "token", token, "holder", ARGV[2])
  redis.call("PEXPIRE", KEYS[3], ARGV[1])
  return {token, redis.call("HGET", KEYS[2], "source")}
end

-- Each attempt is a sign of life, for a TTL.
local ours, queued, theirs = {}, false, 0
for _, one in ipairs(redis.call("HKEYS", KEYS[6])) do ours[one] = true end
for _, one in ipairs(redis.call("LRANGE", KEYS[4], 0, -1)) do
  queued = one == ARGV[2]
  if queued then break end
  if not ours[one] then theirs = theirs + 1 end
end
if not queued then redis.call("RPUSH", KEYS[4], ARGV[2]) end
local alive = now + ARGV[1]
redis.call("ZADD", KEYS[5], alive + theirs * ARGV[5], ARGV[2])
redis.call("HSET", KEYS[6], ARGV[2], string.format("%d %s", alive, ARGV[3]))
-- Others may have a longer TTL.
if redis.call("PTTL", KEYS[6]) < 2 * ARGV[1] then redis.call("PEXPIRE", KEYS[6], 2 * ARGV[1]) end
return {0, redis.call("PTTL", KEYS[1])}
