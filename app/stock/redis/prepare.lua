-- Raise the fences of some items to our token, register the batch that may be written, and read what it needs, in one
-- atomic step. An item that can't be sold does not stop the others.
--
-- KEYS: of each item
-- Request: source, token, batch, refusal_ttl_ms; items: expected, buyers, keys
-- Returns for each item {"ok", stock, lucky, units of each buyer, what each key stands for, last order, its tag, generation,
-- own terms}, or {reason, ...}.

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

local function prepare(key, item)
  local fence = read_fence(key.fence)
  if odd(fence) then return {"corrupt", key.fence} end
  local refusal = refuse_token(fence)
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
    redis.call("HSET", key.fence, "generation", generation)
  end
  if #item.keys > 0 then add_refusals(key, item.keys, generation, settled) end
  local last, tag = fence.last, fence.tag or ""
  if not last then last, tag = first_of(redis.call("XREVRANGE", key.orders, "+", "-", "COUNT", 1)) end
  return {"ok", stock, lucky, bought, settled, last or false, tag or "", generation, fence.terms or ""}
end

local answers = {}
for _, item in ipairs(request.items) do
  local answer, trouble = answer_of(prepare, keys_of_next_item(), item)
  if trouble then return redis.error_reply(trouble) end
  answers[#answers + 1] = answer
end
return answers
