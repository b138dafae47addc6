-- Set the units left, under the fence like any other write.
--
-- KEYS: 1 stock, 2 lucky, 3 fence, 4 buyers, 5 settled keys, 6 orders
-- ARGV: 1 source, 2 token, 3 units left, 4 "new" to forget all that was sold,
--       then sale and entry of each order known to the caller
-- Answers {"ok", stock, lucky, initial}, or {reason, ...}.

local source, token, sale, era = unpack(redis.call("HMGET", KEYS[3], "source", "token", "sale", "era"))
if odd(source, token, sale, era) then return {"corrupt", KEYS[3]} end
if source and source ~= ARGV[1] then return {"foreign", source, token} end
if token and tonumber(token) > tonumber(ARGV[2]) then return {"stale", token} end

-- As in read.lua; but a store without any history, or a new sale, begins anew.
local lost = sale and ARGV[4] ~= "new" and missing(KEYS[6], sale, 5, #ARGV)
if lost then return {"behind", lost} end
local begins = 0
for i = 5, #ARGV, 2 do begins = math.max(begins, tonumber(ARGV[i]) + 1) end

local lucky = ARGV[4] ~= "new" and redis.call("GET", KEYS[2]) or "0"
if not whole(lucky) then return {"corrupt", KEYS[2]} end

if ARGV[4] == "new" then
  redis.call("DEL", KEYS[4], KEYS[5], KEYS[6])
  redis.call("HDEL", KEYS[3], "batch", "first", "last")
end
if ARGV[4] == "new" or not sale then
  -- A sale is called by its beginning, in ms: refusals and marks that are remembered name the sale that they belong to.
  local now = redis.call("TIME")
  begins = math.max(begins, now[1] * 1000 + math.floor(now[2] / 1000), tonumber(sale or "0") + 1)
  redis.call("HSET", KEYS[3], "sale", string.format("%.0f", begins))
end
local initial = string.format("%.0f", tonumber(ARGV[3]) + tonumber(lucky))
redis.call("SET", KEYS[1], ARGV[3])
redis.call("SET", KEYS[2], lucky)
redis.call("HSET", KEYS[3], "source", ARGV[1], "token", ARGV[2], "initial", initial)
-- Whatever was announced was decided on another stock.
redis.call("HDEL", KEYS[3], "announced")
return {"ok", ARGV[3], lucky, initial}
