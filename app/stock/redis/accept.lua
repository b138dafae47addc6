-- Begin a new sale with all that is there, so that no order known from before is looked for any more.
--
-- KEYS: 1 fence
-- ARGV: sale and entry of each order known to the caller

local now = redis.call("TIME")
local begins = math.max(now[1] * 1000 + math.floor(now[2] / 1000), tonumber(redis.call("HGET", KEYS[1], "sale") or "0") + 1)
for i = 1, #ARGV, 2 do begins = math.max(begins, tonumber(ARGV[i]) + 1) end
redis.call("HSET", KEYS[1], "sale", string.format("%.0f", begins))
return "ok"
