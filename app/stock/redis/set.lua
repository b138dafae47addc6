-- Set the units left, under the fence like any other write.
--
-- KEYS: of the item
-- Request: source, token, stock, new_sale (to forget all that was sold), expected
-- Answers {"ok", stock, lucky, initial}, or {reason, ...}.

local key = keys_of_next_item(0)
local fence = read_fence(key.fence)
if odd(fence) then return {"corrupt", key.fence} end
local refusal = refuse_token(fence)
if refusal then return refusal end

-- As in prepare.lua; but a store without any history, or a new sale, begins anew.
local lost = fence.generation and not request.new_sale and missing(key.orders, fence.generation, request.expected)
if lost then return {"behind", lost} end
local lucky = not request.new_sale and redis.call("GET", key.lucky) or "0"
if not whole(lucky) then return {"corrupt", key.lucky} end

if request.new_sale then
  redis.call("DEL", key.buyers, key.settled, key.orders)
  redis.call("HDEL", key.fence, "batch", "first", "last")
end
if request.new_sale or not fence.generation then
  redis.call("HSET", key.fence, "generation", next_generation(fence.generation, request.expected))
end
local initial = string.format("%.0f", tonumber(request.stock) + tonumber(lucky))
redis.call("SET", key.stock, request.stock)
redis.call("SET", key.lucky, lucky)
redis.call("HSET", key.fence, "source", request.source, "token", request.token, "initial", initial)
-- Whatever was prepared was decided on another stock.
redis.call("HDEL", key.fence, "prepared")
return {"ok", request.stock, lucky, initial}
