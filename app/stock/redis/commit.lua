-- Write a batch, of each item all or nothing, if it is still the one that was prepared under our token, and the stock
-- is what was read then.
--
-- KEYS: of each item
-- Request: source, token, batch, instance, refusal_ttl_ms; items: stock (as it was read), sold (of each order: quantity,
-- buyer, key, secret; "" for none), refused (keys, and what each stands for), and, if there are any, changes of orders and
-- those that have begun with a record, "held" or "sold": see `keys.py`; and the notes of operators' changes, for the
-- log, whose key is then behind those of the item
-- Returns for each item {"ok", first entry, generation}, or {reason, ...}. The ids of the other entries follow the first
-- one: those of the changes, of those that have begun, of what is just sold.

-- The reason why an item's part can't be written, else nothing. A script that fails half-way is not rolled back, so
-- check first everything that could make a write fail.
local HOLDS = {records = "hash", due = "zset", payments = "hash", holders = "hash", buyers = "hash", settled = "hash"}

-- The orders are as they were when that was decided: no other batch has been prepared since.
local function refuse_changes(key, item)
  for name, kind in pairs(HOLDS) do
    local found = redis.call("TYPE", key[name]).ok
    if found ~= "none" and found ~= kind then return {"corrupt", key[name]} end
  end
  for _, one in ipairs(item.changes) do
    if one.buyer ~= "" and not whole(redis.call("HGET", key.buyers, one.buyer) or "0") then return {"corrupt", key.buyers} end
  end
  for _, one in ipairs(item.begun) do
    if one.buyer ~= "" and not whole(redis.call("HGET", key.buyers, one.buyer) or "0") then return {"corrupt", key.buyers} end
  end
end

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
  if item.changes then return refuse_changes(key, item) end
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

-- Append an entry to the journal. The first id is the store's clock, the others follow it, so that all can be derived
-- from the first one. `at`: {ms, sequence} of the next one, empty for the first.
local function append(key, at, fence, quantity, buyer, name, secret, ...)
  local id = redis.call("XADD", key.orders, at.ms and (at.ms .. "-" .. string.format("%.0f", at.seq)) or "*",
    "quantity", quantity, "buyer", buyer, "key", name, "secret", secret,
    "instance", request.instance, "token", request.token, "batch", request.batch, "epoch", fence.epoch or "0", ...)
  if not at.ms then
    at.first = id
    at.ms, at.seq = string.match(id, "^(%d+)%-(%d+)$")
  end
  at.seq, at.last, at.secret = at.seq + 1, id, secret
  return id
end

-- A record is kept behind the entries of its order's later events, a line each, so that those are found again.
local function keep(key, number, entry, record)
  local before = string.match(redis.call("HGET", key.records, number) or "", "^[^{]*")
  redis.call("HSET", key.records, number, before .. entry .. "\n" .. record)
end

local function write_change(key, at, fence, one)
  local entry = append(key, at, fence, one.quantity, one.buyer, "", one.secret, "kind", one.kind, "order", one.number,
    "n", one.event, "units", table.concat(one.units, " "), "facts", one.facts)
  keep(key, one.number, entry, one.record)
  if one.due ~= "" then
    redis.call("ZADD", key.due, one.due, one.number)
  else
    redis.call("ZREM", key.due, one.number)
    if one.buyer ~= "" and redis.call("HGET", key.holders, one.buyer) == one.number then
      redis.call("HDEL", key.holders, one.buyer)
    end
  end
  if one.bought ~= "0" and one.buyer ~= "" then redis.call("HINCRBY", key.buyers, one.buyer, one.bought) end
  if one.payment ~= "" then redis.call("HSET", key.payments, one.payment, one.number) end
end

local function write_begun(key, at, fence, one, settled)
  local is_held, buyer, quantity = one.state == "held", one.buyer, one.quantity
  local number = append(key, at, fence, quantity, buyer, one.key, one.secret, "kind", one.state,
    "units", "-" .. quantity .. (is_held and " " .. quantity .. " 0" or " 0 " .. quantity), "facts", one.facts)
  redis.call("HSET", key.records, number, one.record)
  if is_held then redis.call("ZADD", key.due, one.due, number) end
  if buyer ~= "" then
    redis.call("HINCRBY", key.buyers, buyer, quantity)
    if is_held then redis.call("HSET", key.holders, buyer, number) end
  end
  if one.key ~= "" then
    settled[#settled + 1] = one.key
    settled[#settled + 1] = number .. " " .. stands_for(quantity, buyer, one.secret, one.state)
  end
end

-- The order makes a partial write noticed, and sells nothing twice: first the units, last the note of them.
local function write(key, item, fence)
  local stock, held, sold, changes = 0, 0, 0, item.changes or {}
  for _, one in ipairs(item.sold) do sold = sold + tonumber(one[1]) end
  for _, one in ipairs(item.begun or {}) do
    local units = tonumber(one.quantity)
    if one.state == "held" then stock, held = stock - units, held + units else sold = sold + units end
  end
  stock = stock - sold
  for _, one in ipairs(changes) do stock, held, sold = stock + one.units[1], held + one.units[2], sold + one.units[3] end
  for _, one in ipairs(item.notes or {}) do note_in(key.log, one.by, one.what, one.before, one.after) end
  local lucky
  if sold ~= 0 then lucky = redis.call("INCRBY", key.lucky, string.format("%.0f", sold)) end
  if stock ~= 0 then redis.call("INCRBY", key.stock, string.format("%.0f", stock)) end
  local at, settled = {}, {}
  for _, one in ipairs(changes) do write_change(key, at, fence, one) end
  for _, one in ipairs(item.begun or {}) do write_begun(key, at, fence, one, settled) end
  for _, one in ipairs(item.sold) do
    local quantity, buyer, name, secret = unpack(one)
    local id = append(key, at, fence, quantity, buyer, name, secret)
    if buyer ~= "" then redis.call("HINCRBY", key.buyers, buyer, quantity) end
    if name ~= "" then
      settled[#settled + 1] = name
      settled[#settled + 1] = id .. " " .. stands_for(quantity, buyer, secret)
    end
  end
  if #settled > 0 then redis.call("HSET", key.settled, unpack(settled)) end
  if #item.refused > 0 then remember(key, fence, item.refused) end
  lucky = lucky or redis.call("GET", key.lucky) or "0"
  -- A single command, so that "sold" is about this batch.
  local first = at.first or ""
  local note = {"batch", request.batch, "first", first, "sold", string.format("%.0f", lucky) .. " " .. request.batch}
  local function also(name, value)
    note[#note + 1] = name
    note[#note + 1] = value
  end
  if at.last then  -- quicker to read here than at the end of a stream
    also("last", at.last)
    also("tag", tag_of(at.secret))
  end
  if held ~= 0 then also("held", string.format("%.0f", tonumber(fence.held or "0") + held)) end
  if #changes > 0 then also("changes", string.format("%.0f", tonumber(fence.changes or "0") + #changes)) end
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
  if item.notes then
    keys_used = keys_used + 1
    key.log = KEYS[keys_used]
  end
  answers[#answers + 1] = may_not and {"forbidden", may_not} or commit(key, item)
end
return answers
