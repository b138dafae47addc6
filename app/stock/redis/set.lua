-- Set the units left, or add some, under the fence like any other write.
--
-- KEYS: of the item, its log and its outbox
-- Request: source, token, stock, add (whether it is to be added), if_match (stock and lucky must be that, else false),
-- if_initial (the units at the start, likewise),
-- new_sale (to forget all that was sold), forget_orders (how many orders that must be, else false), terms (the changes to
-- the item's own; null for none), kinds (of all terms: "number" or "string"), expected, by, what
-- Returns {"ok", stock, lucky, initial, false, own terms, held}, or {reason, ...}.

local key = keys_of_next_item()
local fence = read_fence(key.fence)
if odd(fence) then return {"corrupt", key.fence} end
local refusal = refuse(fence, request.new_sale)
if refusal then return refusal end
local may_not = forbidden(key)
if may_not then return {"forbidden", may_not} end

-- As in prepare.lua; but a store without any history, or a new sale, begins anew.
local lost = fence.generation and not request.new_sale and missing(key.orders, fence.generation, request.expected)
if lost then return {"behind", lost} end
local before, lucky = redis.call("GET", key.stock), redis.call("GET", key.lucky) or "0"
if request.if_match and ((before or "0") ~= request.if_match[1] or lucky ~= request.if_match[2]) then
  return {"not as expected", before or "0", lucky}
end
if request.if_initial and fence.initial ~= request.if_initial then return {"not as expected", before or "0", lucky} end
if request.new_sale and request.forget_orders then
  local orders = redis.pcall("XLEN", key.orders)
  if type(orders) == "table" then return {"corrupt", key.orders} end
  orders = orders - tonumber(fence.changes or "0")
  if orders ~= request.forget_orders then return {"orders", orders} end
end
local decoded, terms = pcall(cjson.decode, fence.terms or "{}")
local readable, others = decoded and type(terms) == "table", false
for name, value in pairs(readable and terms or {}) do
  local right = type(value) == request.kinds[name]
  if type(value) == "number" then right = right and value >= 0 and value < 1e12 end
  if not right and request.terms[name] ~= nil then
    terms[name] = nil -- the change replaces it
  else
    readable = readable and right
  end
end
for name in pairs(request.kinds) do others = others or request.terms[name] == nil end
if not readable then
  if not request.new_sale and others then return {"corrupt", key.fence} end
  terms = {}
end
local was, is = {stock = whole(before) and tonumber(before) or nil, sold = whole(lucky) and tonumber(lucky) or nil}, {}
for name, value in pairs(terms) do was[name] = value end
for name, value in pairs(request.terms) do
  if value == cjson.null then terms[name] = nil else terms[name] = value end
end
for name, value in pairs(terms) do is[name] = value end
terms = next(terms) and cjson.encode(terms) or ""
local held = fence.held or "0"
if request.new_sale then lucky, held = "0", "0" end
if not whole(lucky) then return {"corrupt", key.lucky} end
local stock = request.stock
if request.add then
  if not before then return {"unknown"} end
  if not whole(before) then return {"no number", key.stock} end
  stock = string.format("%.0f", tonumber(before) + tonumber(stock))
end
local initial = string.format("%.0f", tonumber(stock) + tonumber(held) + tonumber(lucky))
if not whole(initial) then return {"too many"} end

is.stock, is.sold = tonumber(stock), tonumber(lucky)
if (fence.held or "0") ~= "0" then was.held, is.held = tonumber(fence.held), tonumber(held) end
note(was, is)
if request.new_sale then
  -- Not DEL: to free some million orders takes seconds, and blocks the server.
  redis.call("UNLINK", key.buyers, key.settled, key.refused, key.refused_before, key.records, key.due,
    key.payments, key.holders, KEYS[14])
  -- An empty stream keeps its last id: no number is used again, also if the clock was set back.
  local last = redis.pcall("XREVRANGE", key.orders, "+", "-", "COUNT", 1)
  if last.err or last[1] then redis.call("UNLINK", key.orders) end
  if last[1] then redis.call("XADD", key.orders, "MAXLEN", 0, last[1][1], "sale", "over") end
  redis.call("HDEL", key.fence, "batch", "first", "last", "tag", "held", "changes", "sale")
  fence.batch = nil
end
if request.new_sale or not fence.generation then
  redis.call("HSET", key.fence, "generation", next_generation(fence.generation, request.expected), "layout", LAYOUT)
end
redis.call("SET", key.stock, stock)
redis.call("SET", key.lucky, lucky)
redis.call("HSET", key.fence, "source", request.source, "token", request.token, "initial", initial,
  "sold", lucky .. " " .. (fence.batch or ""))
if terms == "" then
  redis.call("HDEL", key.fence, "terms")
else
  redis.call("HSET", key.fence, "terms", terms)
end
-- A batch that is prepared was decided on another stock.
redis.call("HDEL", key.fence, "prepared")
return {"ok", stock, lucky, initial, false, terms, held}
