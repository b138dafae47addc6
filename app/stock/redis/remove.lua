-- Remove an item of which nothing was sold, under the fence like any other write. The fence stays, for late writes.
--
-- KEYS: of the item, its log and its outbox
-- Request: source, token, by, what
-- Returns {"ok"}, or {reason, ...}.

local key = keys_of_next_item()
local fence = read_fence(key.fence)
if odd(fence) then return {"corrupt", key.fence} end
local refusal = refuse(fence)
if refusal then return refusal end
local may_not = forbidden(key)
if may_not then return {"forbidden", may_not} end

local stock, lucky, orders = redis.call("GET", key.stock), redis.call("GET", key.lucky) or "0", redis.call("XLEN", key.orders)
if not stock then return {"unknown"} end
if orders > 0 or lucky ~= "0" then return {"orders", orders} end
-- The orders' empty stream stays, too: it keeps the last id of an earlier sale.
note({stock = tonumber(stock)}, {})
redis.call("UNLINK", key.stock, key.lucky, key.buyers, key.settled, key.refused, key.refused_before, key.records,
  key.due, key.payments, key.holders, KEYS[14])
redis.call("HDEL", key.fence, "prepared", "batch", "first", "last", "tag", "terms", "initial", "sold", "held", "changes")
redis.call("HSET", key.fence, "source", request.source, "token", request.token)
return {"ok"}
