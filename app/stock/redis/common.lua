-- The common part of the scripts beside this file, put before each of them. A script has one argument, a JSON object,
-- in which numbers are strings, so that nothing is rounded.

local request = cjson.decode(ARGV[1])

-- The keys of the next item: stock, lucky, fence, buyers, what idempotency keys stand for, orders, the remembered
-- refusals, newer and older ones; and of orders that are not just sold: how they stand, by number, when those that are
-- held go back, the order of each payment, and each buyer's last one that is held.
local keys_used = 0
local function keys_of_next_item()
  local key = {}
  key.stock, key.lucky, key.fence, key.buyers, key.settled, key.orders, key.refused, key.refused_before,
    key.records, key.due, key.payments, key.holders = unpack(KEYS, keys_used + 1, keys_used + 12)
  keys_used = keys_used + 12
  return key
end

-- The fields of an item's fence hash, false for a missing one: the highest token that was seen, and its source;
-- the batch that may be written (`prepared`), the last one that was (`batch`), its first order and the last order of
-- all, with its tag; the item's own terms, in JSON; the generation (when the sale began, in ms) and the epoch of the tokens;
-- the units at the start; the units sold as of the end of the last write, with its batch; the units held; and the
-- entries of the journal that begin no order; and the layout of all this, noted with the generation. A loss that is accepted
-- begins a generation, and no sale: `sale` is then the generation with which the sale began.
local FENCE = {
  "source", "token", "prepared", "batch", "first", "last", "tag", "terms", "generation", "epoch", "initial", "sold", "held",
  "changes", "layout", "sale",
}

local function read_fence(name)
  local values, fence = redis.call("HMGET", name, unpack(FENCE)), {}
  for i, field in ipairs(FENCE) do fence[field] = values[i] end
  return fence
end

-- The name of an item's sale, "" before it has begun.
local function sale_of(name)
  local sale, generation = unpack(redis.call("HMGET", name, "sale", "generation"))
  return sale or generation or ""
end

-- Whether a call's answer is a whole number of 0 or more that Lua can count with; an error is none.
local function whole(text)
  return text == "0" or (type(text) == "string" and string.match(text, "^[1-9]%d*$") and #text <= 15)
end

local function whole_if_any(text)
  return not text or (#text <= 16 and string.match(text, "^%d+$"))
end

-- Whether a fence holds values that none of our scripts has written.
local function odd(fence)
  return not fence.source ~= not fence.token
    or not (whole_if_any(fence.token) and whole_if_any(fence.generation) and whole_if_any(fence.epoch))
    or not whole_if_any(fence.sale)
    or not (whole_if_any(fence.held) and whole_if_any(fence.changes) and whole_if_any(fence.layout))
end

-- Whether the last write ended half-way: it counts its units first, and notes them last. (Writes by other means don't
-- matter here.)
local function half_written(fence, lucky)
  local sold, batch = string.match(fence.sold or "", "^(%d+) (.*)$")
  return sold and batch == (fence.batch or "") and tonumber(lucky) > tonumber(sold)
end

-- The first command of a sale that we may not run, else nothing: a missing permission would end a script half-way.
local function forbidden(key)
  if not redis.acl_check_cmd then return end  -- before Redis 7
  local needed = {
    {"MGET", key.stock, key.lucky}, {"GET", key.stock}, {"SET", key.stock, "0"}, {"INCRBY", key.lucky, "1"},
    {"DECRBY", key.stock, "1"}, {"HMGET", key.fence, "a"}, {"HGET", key.fence, "a"}, {"HSET", key.fence, "a", "b"},
    {"HDEL", key.fence, "a"}, {"HINCRBY", key.buyers, "a", "1"}, {"HEXISTS", key.settled, "a"}, {"HLEN", key.refused},
    {"XADD", key.orders, "*", "a", "b"}, {"XRANGE", key.orders, "-", "+"}, {"XREVRANGE", key.orders, "+", "-"},
    {"TYPE", key.orders}, {"UNLINK", key.orders}, {"RENAME", key.refused, key.refused_before},
    {"PEXPIRE", key.refused, "1"}, {"TIME"}, {"HSET", key.records, "a", "b"}, {"HDEL", key.holders, "a"},
    {"ZADD", key.due, "1", "a"}, {"ZREM", key.due, "a"}, {"ZRANGEBYSCORE", key.due, "0", "1"},
  }
  for _, command in ipairs(needed) do
    if not redis.acl_check_cmd(unpack(command)) then return command[1] end
  end
end

-- Write a line of the operators' log, under the key behind those of the item: who, what, before and after. It comes
-- before the change: a missing permission would end a script half-way.
local LOG_MAX = 10000

local function note_in(log, by, what, before, after)
  redis.call("XADD", log, "MAXLEN", "~", LOG_MAX, "*", "by", by, "what", what, "before", before, "after", after)
end

local function note(before, after)
  note_in(KEYS[13], request.by, request.what, cjson.encode(before), cjson.encode(after))
end

local function now_ms()
  local now = redis.call("TIME")
  return now[1] * 1000 + math.floor(now[2] / 1000)
end

-- The value of an order's idempotency key, in JSON: see `keys.py`.
local function stands_for(quantity, buyer, secret, outcome)
  local of = buyer ~= "" and '"buyer":' .. cjson.encode(buyer) .. "," or ""
  return '{"outcome":"' .. (outcome or "sold") .. '","quantity":' .. quantity .. "," .. of .. '"secret":"' .. secret .. '"}'
end

-- The tag that distinguishes orders with the same id, if a store was set back: the beginning of a digest of the secret.
local function tag_of(secret)
  return string.sub(redis.sha1hex(secret), 1, 8)
end

-- The first entry in a page of the orders, and its tag; nothing if the page is empty.
local function first_of(page)
  if not page[1] then return end
  local fields = page[1][2]
  for i = 1, #fields, 2 do
    if fields[i] == "secret" then return page[1][1], tag_of(fields[i + 1]) end
  end
  return page[1][1], ""
end

-- The reason why a grant may not pass a fence: the sale was begun in another layout than ours, its token has another
-- source, or a higher one was seen; else nothing. A new sale takes the place of an earlier layout, and reads nothing of it.
local LAYOUT = 3 -- as in app/stock/store.py

local function refuse(fence, new_sale)
  local layout = tonumber(fence.layout or (fence.generation and 0) or LAYOUT) -- nothing has begun without a generation
  if layout > LAYOUT or (layout < LAYOUT and not new_sale) then return {"layout", string.format("%.0f", layout)} end
  if fence.source and fence.source ~= request.source then return {"foreign", fence.source, fence.token} end
  if fence.token and tonumber(fence.token) > tonumber(request.token) then return {"stale", fence.token} end
end

-- The first order of those `expected` ({generation, entry, tag} each; no tag: any) that is not there, unless a later
-- generation has begun; else nothing.
local function missing(orders, generation, expected)
  for _, order in ipairs(expected) do
    if tonumber(generation or "0") <= tonumber(order[1]) then
      if generation ~= order[1] then return order[2] end
      local entry, tag = first_of(redis.call("XRANGE", orders, order[2], order[2]))
      if not entry or (order[3] ~= "" and tag ~= order[3]) then return order[2] end
    end
  end
end

-- A number for a generation that begins now: greater than `generation` and those of all expected orders.
local function next_generation(generation, expected)
  local number = math.max(now_ms(), tonumber(generation or "0") + 1)
  for _, order in ipairs(expected) do number = math.max(number, tonumber(order[1]) + 1) end
  return string.format("%.0f", number)
end

-- The result of `look(key, ...)` for an item; or, if one of its keys holds a foreign type, "corrupt" and that key.
-- All other errors are the server's: nil, and the text.
local KINDS = {
  stock = "string", lucky = "string", fence = "hash", buyers = "hash", settled = "hash", orders = "stream",
  refused = "hash", refused_before = "hash", records = "hash", due = "zset", payments = "hash", holders = "hash",
}

local function answer_of(look, key, ...)
  local done, answer = pcall(look, key, ...)
  if done then return answer end
  local text = type(answer) == "table" and answer.err or tostring(answer)
  if string.find(text, "WRONGTYPE", 1, true) then
    for name, kind in pairs(KINDS) do
      local found = redis.call("TYPE", key[name]).ok
      if found ~= "none" and found ~= kind then return {"corrupt", key[name]} end
    end
  end
  if string.find(text, "Invalid stream ID", 1, true) then return {"corrupt", key.fence} end
  return nil, text
end
