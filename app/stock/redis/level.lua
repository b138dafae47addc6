-- Units left and sold, in one glance: read apart, they would not add up while something is being sold.
--
-- KEYS: 1 stock, 2 lucky, 3 fence, 4 orders
local last = redis.call("XREVRANGE", KEYS[4], "+", "-", "COUNT", 1)
return {
  redis.call("GET", KEYS[1]),
  redis.call("GET", KEYS[2]),
  redis.call("HGET", KEYS[3], "initial"),
  last[1] and last[1][1] or false,
}
