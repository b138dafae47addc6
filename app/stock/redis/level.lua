-- Read units left and sold of some items, each at one moment: read apart, they would not add up during a sale.
--
-- KEYS: of each item
-- Returns for each item {"ok", stock, lucky, units at the start, last entry, own terms, units held, in how many ms the first of
-- them go back, the clock in ms, sale}, or {reason, ...}.

local function level(key)
  local due, now = redis.call("ZRANGE", key.due, 0, 0, "WITHSCORES")[2], now_ms()
  local last = redis.call("XREVRANGE", key.orders, "+", "-", "COUNT", 1)
  return {
    "ok",
    redis.call("GET", key.stock),
    redis.call("GET", key.lucky),
    redis.call("HGET", key.fence, "initial"),
    last[1] and last[1][1] or false,
    redis.call("HGET", key.fence, "terms") or "",
    redis.call("HGET", key.fence, "held") or "0",
    due and string.format("%.0f", due - now) or false,
    string.format("%.0f", now),
    sale_of(key.fence),
  }
end

local answers = {}
for _ in ipairs(request.items) do
  local answer, trouble = answer_of(level, keys_of_next_item())
  if trouble then return redis.error_reply(trouble) end
  answers[#answers + 1] = answer
end
return answers
