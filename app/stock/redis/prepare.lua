-- Raise the fences of some items to our token, register the batch that may be written, and read what it needs, in one
-- atomic step. An item that can't be sold does not stop the others.
--
-- KEYS: of each item
-- Request: source, token, batch, refusal_ttl_ms; items: expected, buyers, keys; if it is about holds, too: orders (their
-- numbers), payments
-- Returns for each item {"ok", stock, lucky, units of each buyer, what each key stands for, last order, its tag, generation,
-- own terms, about holds}, or {reason, ...}. About holds, if any were asked for or are there: {now, units held,
-- {number and record of each order, or the entry by which it was sold}, the order of each buyer and of each payment, the
-- numbers of those that are due, whether there are more, and what the buyers of these orders have bought}.

local DUE_MAX = 200  -- orders that a batch gives back at most

-- Add the recent refusals of this generation to what the keys stand for.
local function add_refusals(key, names, generation, settled)
  local oldest = now_ms() - request.refusal_ttl_ms
  for _, hash in ipairs({key.refused, key.refused_before}) do
    local refused = redis.call("HMGET", hash, unpack(names))
    for i = 1, #names do
      local of, at, what = string.match(not settled[i] and refused[i] or "", "^(%d+) (%d+) (.*)$")
      if of == generation and tonumber(at) > oldest then settled[i] = " " .. what end
    end
  end
end

-- Decode a text of ours; what is none says nothing, and is noticed where all of it is read.
local function decoded(text)
  local ok, found = pcall(cjson.decode, string.match(text or "", "{.*$") or "")
  return ok and type(found) == "table" and found or {}
end

local function about_holds(key, item, fence, settled)
  local held = fence.held or "0"
  if not item.orders and held == "0" then return false end
  local now = string.format("%.0f", now_ms())
  local due = redis.call("ZRANGEBYSCORE", key.due, 0, now, "LIMIT", 0, DUE_MAX + 1)
  local more = due[DUE_MAX + 1] and 1 or 0
  due[DUE_MAX + 1] = nil
  if not item.orders and #due == 0 then return {now, held, {}, {}, {}, {}, 0, {}} end

  local open, payments, numbers = {}, {}, {}
  if #item.buyers > 0 then open = redis.call("HMGET", key.holders, unpack(item.buyers)) end
  if item.payments and #item.payments > 0 then payments = redis.call("HMGET", key.payments, unpack(item.payments)) end
  for _, number in ipairs(item.orders or {}) do numbers[number] = true end
  for _, number in ipairs(due) do numbers[number] = true end
  for i = 1, #item.buyers do if open[i] then numbers[open[i]] = true end end
  for i = 1, #item.keys do
    local entry, packed = string.match(settled[i] or "", "^(%S*) (.*)$")
    local of = decoded(packed)
    local number = entry ~= "" and of.outcome == "held" and entry or of.number
    if number then numbers[number] = true end
  end
  local records = {}
  for number in pairs(numbers) do
    local record = redis.call("HGET", key.records, number)
    if not record then
      local entry = redis.call("XRANGE", key.orders, number, number)[1]
      record = entry and entry[2]
    end
    if record then
      records[#records + 1] = number
      records[#records + 1] = record
    end
  end
  -- A late payment counts for its buyer's limit, and only the order says whose it is.
  local had = {}
  for _, number in ipairs(item.orders or {}) do
    local record = decoded(redis.call("HGET", key.records, number))
    local buyer = record.state == "expired" and record.buyer
    if buyer then
      had[#had + 1] = buyer
      had[#had + 1] = redis.call("HGET", key.buyers, buyer) or "0"
    end
  end
  return {now, held, records, open, payments, due, more, had}
end

local function prepare(key, item)
  local fence = read_fence(key.fence)
  if odd(fence) then return {"corrupt", key.fence} end
  local refusal = refuse(fence)
  if refusal then return refusal end
  local lost = missing(key.orders, fence.generation, item.expected)
  if lost then return {"behind", lost} end
  -- MGET is cheaper than two calls, but returns nil for a key of another type, too.
  local stock, lucky = unpack(redis.call("MGET", key.stock, key.lucky))
  if not (stock and lucky) then
    stock, lucky = redis.call("GET", key.stock), redis.call("GET", key.lucky) or "0"
  end
  local prepared = {"source", request.source, "token", request.token, "prepared", request.batch}
  if not stock then
    -- No write that is on its way may succeed, even if the stock comes back.
    if fence.token then redis.call("HSET", key.fence, unpack(prepared)) end
    return {"unknown"}
  end

  local bought, settled = {}, {}
  if #item.buyers > 0 then bought = redis.call("HMGET", key.buyers, unpack(item.buyers)) end
  if #item.keys > 0 then settled = redis.call("HMGET", key.settled, unpack(item.keys)) end
  if not whole(stock) then return {"no number", key.stock} end
  if not whole(lucky) then return {"no number", key.lucky} end
  if half_written(fence, lucky) then return {"half", key.lucky} end

  redis.call("HSET", key.fence, unpack(prepared))
  local generation = fence.generation
  if not generation then
    generation = next_generation(nil, {})
    redis.call("HSET", key.fence, "generation", generation, "layout", LAYOUT)
  end
  if #item.keys > 0 then add_refusals(key, item.keys, generation, settled) end
  local last, tag = fence.last, fence.tag or ""
  if not last then last, tag = first_of(redis.call("XREVRANGE", key.orders, "+", "-", "COUNT", 1)) end
  local holds = about_holds(key, item, fence, settled)
  return {"ok", stock, lucky, bought, settled, last or false, tag or "", generation, fence.terms or "", holds}
end

local answers = {}
for _, item in ipairs(request.items) do
  local answer, trouble = answer_of(prepare, keys_of_next_item(), item)
  if trouble then return redis.error_reply(trouble) end
  answers[#answers + 1] = answer
end
return answers
