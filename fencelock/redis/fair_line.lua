-- What the scripts of the fair lock have in common: the line, as Redisson's RFairLock has it. A list of those who wait,
-- and their times: who is first and whose time is over is dropped, by a script of ours or of Redisson's. To that comes
-- a hash of ours: until when each of ours lives, by its last sign, and who that is, for people.
--
-- Redisson's waiters give no sign. When one of them gets the lock or gives up, it takes all that it would have waited
-- off the times of all behind. So the time of ours is that until which it lives, and such a wait more for each of
-- Redisson's ahead. Ours take nothing off anybody's.

local clock = redis.call("TIME")
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

-- Drop the dead before the first who is alive. Answers who that is, or false. `me` is alive: it asks.
local function first_alive(line, times, names, me)
  local first = redis.call("LINDEX", line, 0)
  while first and first ~= me do
    local time = tonumber(redis.call("ZSCORE", times, first) or math.huge)
    -- Of ours we know better than by what was added and taken off.
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
