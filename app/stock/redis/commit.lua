-- Write a batch, of each item all or nothing, if it is still the one that was prepared under our token, and the stock
-- is what was read then.
--
-- KEYS: of each item
-- Request: source, token, batch, instance, refusal_ttl_ms; items: stock (as it was read), sold (of each order: quantity,
-- buyer, key, secret; "" for none), refused (keys, and what each stands for)
-- Returns for each item {"ok", first order, generation}, or {reason, ...}. The other orders' ids follow the first one.

-- The reason why an item's part can't be written, else nothing. A script that fails half-way is not rolled back, so
-- check first everything that could make a write fail.
local function refuse(key, item, fence)
  if fence.token ~= request.token or fence.prepared ~= request.batch then return {"stale", fence.token or "none"} end
  local stock, lucky = unpack(redis.call("MGET", key.stock, key.lucky))
  if stock ~= item.stock then return {"changed", stock or "none"} end
  -- MGET returns nil for a key of another type, too.
  if not whole(lucky or redis.pcall("GET", key.lucky) or "0") then return {"corrupt", key.lucky} end
  if half_written(fence, lucky or "0") then return {"half", key.lucky} end
  local orders = redis.call("TYPE", key.orders).ok
  if orders ~= "stream" and orders ~= "none" then return {"corrupt", key.orders} end
  for _, sold in ipairs(item.sold) do
    if sold[2] ~= "" and not whole(redis.pcall("HGET", key.buyers, sold[2]) or "0") then
      return {"corrupt", key.buyers}
    end
  end
  if #item.sold > 0 and type(redis.pcall("HLEN", key.settled)) == "table" then return {"corrupt", key.settled} end
  if #item.refused > 0 and type(redis.pcall("HLEN", key.refused)) == "table" then return {"corrupt", key.refused} end
end

local REFUSALS_MAX = 10000  -- of an item, in each of its two hashes

-- Remember refusals, in a hash that replaces the older one when it is full, or too old.
local function remember(key, fence, refused)
  local now, begun = now_ms(), redis.call("HGET", key.refused, "")
  local too_old = begun and now - (tonumber(begun) or 0) > tonumber(request.refusal_ttl_ms)
  if too_old or redis.call("HLEN", key.refused) > REFUSALS_MAX then
    redis.call("UNLINK", key.refused_before)
    redis.call("RENAME", key.refused, key.refused_before)
    redis.call("PEXPIRE", key.refused_before, request.refusal_ttl_ms)
    begun = nil
  end
  if not begun then redis.call("HSET", key.refused, "", string.format("%.0f", now)) end
  for _, one in ipairs(refused) do
    redis.call("HSET", key.refused, one.key, fence.generation .. " " .. string.format("%.0f", now) .. " " .. one.settled)
  end
  redis.call("PEXPIRE", key.refused, string.format("%.0f", 2 * request.refusal_ttl_ms))
end

-- The order makes a partial write noticed, and sells nothing twice: first the units, last the note of them.
local function write(key, item, fence)
  local units, lucky = 0, nil
  for _, sold in ipairs(item.sold) do units = units + tonumber(sold[1]) end
  if units > 0 then
    lucky = redis.call("INCRBY", key.lucky, units)
    redis.call("DECRBY", key.stock, units)
  end
  local first, last, ms, seq, settled = "", nil, nil, nil, {}
  for i, sold in ipairs(item.sold) do
    local quantity, buyer, name, secret = unpack(sold)
    -- The first id is the store's clock, the others follow it, so that all can be derived from the first one.
    last = redis.call("XADD", key.orders, ms and (ms .. "-" .. string.format("%.0f", seq + i - 1)) or "*",
      "quantity", quantity, "buyer", buyer, "key", name, "secret", secret,
      "instance", request.instance, "token", request.token, "batch", request.batch, "epoch", fence.epoch or "0")
    if i == 1 then
      first = last
      ms, seq = string.match(last, "^(%d+)%-(%d+)$")
      seq = tonumber(seq)
    end
    if buyer ~= "" then redis.call("HINCRBY", key.buyers, buyer, quantity) end
    if name ~= "" then
      settled[#settled + 1] = name
      settled[#settled + 1] = last .. " " .. stands_for(quantity, buyer, secret)
    end
  end
  if #settled > 0 then redis.call("HSET", key.settled, unpack(settled)) end
  if #item.refused > 0 then remember(key, fence, item.refused) end
  lucky = lucky or redis.call("GET", key.lucky) or "0"
  -- A single command, so that "sold" is about this batch.
  local note = {"batch", request.batch, "first", first, "sold", string.format("%.0f", lucky) .. " " .. request.batch}
  if last then  -- quicker to read here than at the end of a stream
    for _, text in ipairs({"last", last, "tag", tag_of(item.sold[#item.sold][4])}) do note[#note + 1] = text end
  end
  redis.call("HSET", key.fence, unpack(note))
  return {"ok", first, fence.generation}
end

local function commit(key, item)
  local readable, fence = pcall(read_fence, key.fence)
  if not readable or odd(fence) then return {"corrupt", key.fence} end
  if fence.batch == request.batch then
    -- The last batch again: its answer was lost. This comes first, as the fence may have advanced since.
    -- The field is written again, so that WAIT has a write to wait for.
    redis.call("HSET", key.fence, "batch", fence.batch)
    return {"ok", fence.first, fence.generation}
  end
  return refuse(key, item, fence) or write(key, item, fence)
end

local may_not = forbidden(keys_of_next_item())
keys_used = 0

local answers = {}
for _, item in ipairs(request.items) do
  local key = keys_of_next_item()
  answers[#answers + 1] = may_not and {"forbidden", may_not} or commit(key, item)
end
return answers
