-- Set the units left, under the fence like any other write.
--
-- KEYS: 1 stock, 2 lucky, 3 fence, 4 buyers, 5 settled keys, 6 orders
-- ARGV: 1 source, 2 token, 3 units left, 4 "new" to forget all that was sold
-- Answers {"ok", stock, lucky, initial}, or {reason, ...}.

local source, token = unpack(redis.call("HMGET", KEYS[3], "source", "token"))
if source and source ~= ARGV[1] then return {"foreign", source, token} end
if token and tonumber(token) > tonumber(ARGV[2]) then return {"stale", token} end

local lucky = ARGV[4] ~= "new" and redis.call("GET", KEYS[2]) or "0"
if not (lucky == "0" or (string.match(lucky, "^[1-9]%d*$") and #lucky <= 15)) then return {"corrupt", KEYS[2]} end

if ARGV[4] == "new" then
  redis.call("DEL", KEYS[4], KEYS[5], KEYS[6])
  redis.call("HDEL", KEYS[3], "batch", "first")
  -- Refusals that were remembered carry the number of their sale.
  redis.call("HINCRBY", KEYS[3], "sale", 1)
end
local initial = string.format("%.0f", tonumber(ARGV[3]) + tonumber(lucky))
redis.call("SET", KEYS[1], ARGV[3])
redis.call("SET", KEYS[2], lucky)
redis.call("HSET", KEYS[3], "source", ARGV[1], "token", ARGV[2], "initial", initial)
-- Whatever was announced was decided on another stock.
redis.call("HDEL", KEYS[3], "announced")
return {"ok", ARGV[3], lucky, initial}
