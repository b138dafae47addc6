-- Units left and sold, in one glance: read apart, they would not add up while something is being sold.
--
-- KEYS: of the item

local key = keys_of_next_item(0)
local last = redis.call("XREVRANGE", key.orders, "+", "-", "COUNT", 1)
return {
  redis.call("GET", key.stock),
  redis.call("GET", key.lucky),
  redis.call("HGET", key.fence, "initial"),
  last[1] and last[1][1] or false,
}
