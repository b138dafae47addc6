-- The line that the fair lock's scripts share, as in Redisson's RFairLock: a list of waiters, and their times. Our
-- scripts and Redisson's drop the first waiter once its time is over. We add a hash: for each of our waiters, until
-- when it lives, by its last sign of life, and who it is, for people.
--
-- Redisson's waiters give no sign of life. When one of them gets the lock or gives up, it subtracts its whole wait from
-- the times of all behind it. To survive that, the time of our waiter is:
--   lives until + (Redisson's waiters ahead of it) * (the longest wait of one of them)
-- Our waiters subtract nothing from anybody's time.

local clock = redis.call("TIME")
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

-- Drop the dead before the first waiter who is alive, and return that one, or false. `me` is alive, as it asks.
local function first_alive(line, times, names, me)
  local first = redis.call("LINDEX", line, 0)
  while first and first ~= me do
    local time = tonumber(redis.call("ZSCORE", times, first) or math.huge)
    -- For our waiters the hash knows better than the time, which was added to and subtracted from.
    local ours = tonumber(string.match(redis.call("HGET", names, first) or "", "^%d+"))
    if (ours or time) > now then
      if ours and ours ~= time then redis.call("ZADD", times, ours, first) end  -- so that Redisson knows it, too
      break
    end
    redis.call("LPOP", line)
    redis.call("ZREM", times, first)
    redis.call("HDEL", names, first)
    first = redis.call("LINDEX", line, 0)
  end
  return first
end
