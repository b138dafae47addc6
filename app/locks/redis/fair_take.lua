-- Take the lock if it is free and it is our turn, else stand in the queue. As Redisson's RFairLock has it: the lock, a
-- list of those who wait, and until when each is believed to be alive once it is the first.
--
-- KEYS: 1 lock, 2 tokens, 3 name of the owner, for people, 4 queue, 5 deadlines, 6 names of the waiters, for people
-- ARGV: 1 TTL (ms), 2 owner, 3 who that is, as JSON, 4 what to call the source of the tokens if it has no name yet
-- Answers {token, source}, or {0, what is left of the TTL (ms; below 0: it has none)} if it is not our turn.

local token = redis.call("HEXISTS", KEYS[1], ARGV[2]) == 1 and redis.call("HGET", KEYS[3], "token")
if token then
  -- We have it, by a try whose answer was lost.
  redis.call("PEXPIRE", KEYS[1], ARGV[1])
  redis.call("PEXPIRE", KEYS[3], ARGV[1])
  return {tonumber(token), redis.call("HGET", KEYS[2], "source")}
end

local clock = redis.call("TIME")
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local first = redis.call("LINDEX", KEYS[4], 0)
while first do
  local until_when = redis.call("ZSCORE", KEYS[5], first)
  if not until_when or tonumber(until_when) > now then break end
  redis.call("ZREM", KEYS[5], first)
  redis.call("LPOP", KEYS[4])
  redis.call("HDEL", KEYS[6], first)
  first = redis.call("LINDEX", KEYS[4], 0)
end

if redis.call("EXISTS", KEYS[1]) == 0 and (not first or first == ARGV[2]) then
  if first then
    redis.call("LPOP", KEYS[4])
    redis.call("ZREM", KEYS[5], ARGV[2])
    redis.call("HDEL", KEYS[6], ARGV[2])
    -- Redisson's waiters have counted our time in before their own.
    for _, other in ipairs(redis.call("ZRANGE", KEYS[5], 0, -1)) do
      redis.call("ZINCRBY", KEYS[5], -ARGV[1], other)
    end
  end
  redis.call("HSET", KEYS[1], ARGV[2], 1)
  redis.call("PEXPIRE", KEYS[1], ARGV[1])
  redis.call("HSETNX", KEYS[2], "source", ARGV[4])
  token = redis.call("HINCRBY", KEYS[2], "token", 1)
  redis.call("HSET", KEYS[3], "who", ARGV[3], "token", token, "holder", ARGV[2])
  redis.call("PEXPIRE", KEYS[3], ARGV[1])
  return {token, redis.call("HGET", KEYS[2], "source")}
end

-- The first is believed to be alive for a TTL, and each of the others for a TTL after whoever is just ahead. Each attempt
-- is a sign of life that puts that off; Redisson's waiters give none, so one of them who dies may stand in the way for
-- five minutes.
local queued, ahead = false, nil
for _, one in ipairs(redis.call("LRANGE", KEYS[4], 0, -1)) do
  queued = one == ARGV[2]
  if queued then break end
  ahead = one
end
if not queued then redis.call("RPUSH", KEYS[4], ARGV[2]) end
local from = ahead and redis.call("ZSCORE", KEYS[5], ahead) or now
if from + ARGV[1] > tonumber(redis.call("ZSCORE", KEYS[5], ARGV[2]) or "0") then
  redis.call("ZADD", KEYS[5], from + ARGV[1], ARGV[2])
end
redis.call("HSET", KEYS[6], ARGV[2], ARGV[3])
redis.call("PEXPIRE", KEYS[6], 2 * ARGV[1])
return {0, redis.call("PTTL", KEYS[1])}
