-- Write a batch, of each item all or nothing, if it is still the one that was prepared under our token, and the stock what
-- was read then.
--
-- KEYS: of each item, with the refusals that it remembers
-- Request: source, token, batch, instance, refusal_ttl_ms; items: stock (as it was read), sold (of each order: quantity,
-- buyer, key, secret, what its key stands for), refused (what each key stands for)
-- Answers for each item {"ok", first order, generation}, or {reason, ...}. The other orders' ids follow the first one.

-- Why an item's part can't be written, else nothing. A script that fails half-way is not undone, so look first at
-- everything that a write could stumble on.
local function refuse(key, item, fence)
  if fence.token ~= request.token or fence.prepared ~= request.batch then return {"stale", fence.token or "none"} end
  local stock, lucky = unpack(redis.call("MGET", key.stock, key.lucky))
  if stock ~= item.stock then return {"changed", stock or "none"} end
  -- MGET says of a key that holds something else that it isn't there.
  if not whole(lucky or redis.pcall("GET", key.lucky) or "0") then return {"corrupt", key.lucky} end
  local orders = redis.call("TYPE", key.orders).ok
  if orders ~= "stream" and orders ~= "none" then return {"corrupt", key.orders} end
  for _, sold in ipairs(item.sold) do
    if sold.buyer ~= "" and not whole(redis.pcall("HGET", key.buyers, sold.buyer) or "0") then
      return {"corrupt", key.buyers}
    end
    if sold.key ~= "" and type(redis.pcall("HEXISTS", key.settled, sold.key)) == "table" then
      return {"corrupt", key.settled}
    end
  end
end

local function write(key, item, fence)
  local units, first, last, ms, seq = 0, "", nil, nil, nil
  for i, sold in ipairs(item.sold) do
    units = units + tonumber(sold.quantity)
    -- The first id is the store's clock, the others follow it, so that the first one tells them all.
    last = redis.call("XADD", key.orders, ms and (ms .. "-" .. string.format("%.0f", seq + i - 1)) or "*",
      "quantity", sold.quantity, "buyer", sold.buyer, "key", sold.key, "secret", sold.secret,
      "instance", request.instance, "token", request.token, "batch", request.batch, "epoch", fence.epoch or "0")
    if i == 1 then
      first = last
      ms, seq = string.match(last, "^(%d+)%-(%d+)$")
      seq = tonumber(seq)
    end
    if sold.buyer ~= "" then redis.call("HINCRBY", key.buyers, sold.buyer, sold.quantity) end
    if sold.key ~= "" then redis.call("HSET", key.settled, sold.key, last .. " " .. sold.settled) end
  end
  if units > 0 then
    redis.call("DECRBY", key.stock, units)
    redis.call("INCRBY", key.lucky, units)
  end
  for i, settled in ipairs(item.refused) do
    redis.call("SET", key.refusals[i], fence.generation .. " " .. settled, "PX", request.refusal_ttl_ms)
  end
  redis.call("HSET", key.fence, "batch", request.batch, "first", first)
  -- The last order is quicker to read here than at the end of a stream.
  if last then redis.call("HSET", key.fence, "last", last) end
  return {"ok", first, fence.generation}
end

local function commit(key, item)
  local readable, fence = pcall(read_fence, key.fence)
  if not readable or odd(fence) then return {"corrupt", key.fence} end
  if fence.batch == request.batch then
    -- The last batch again: its answer was lost on the way. Before all else, as the fence may have moved on since.
    -- Written again, so that there is something to wait for the replicas with.
    redis.call("HSET", key.fence, "batch", fence.batch)
    return {"ok", fence.first, fence.generation}
  end
  return refuse(key, item, fence) or write(key, item, fence)
end

local answers = {}
for _, item in ipairs(request.items) do
  answers[#answers + 1] = commit(keys_of_next_item(#item.refused), item)
end
return answers
