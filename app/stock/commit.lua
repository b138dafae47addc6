-- Write a batch of some items, each of them if the batch is the announced one, the fence is still ours and the stock
-- what it was: all of an item's or nothing of it.
--
-- KEYS: for each item: stock, lucky, fence, buyers, settled keys, orders, then one refusal for each key refused
-- ARGV: 1 source, 2 token, 3 batch id, 4 instance, 5 how long refusals are remembered (ms), then for each item: expected
--       stock; the number of orders, for each: quantity, buyer, key, secret, what its key stands for; the number of
--       refusals, for each: what its key stands for
-- Answers for each item {"ok", id of the first order, sale}, or {reason, ...}. The other orders have the ids that follow.

-- Of what a call answered: an error is none.
local function whole(text)
  return text == "0" or (type(text) == "string" and string.match(text, "^[1-9]%d*$") and #text <= 15)
end

-- Why an item's part can't be written, else nothing. A script that fails half-way is not undone, so look first at
-- everything that a write could stumble on. `at`: where the item's keys begin; `wanted`: where its part of ARGV does.
local function refuse(at, wanted, fence)
  local source, token, announced = unpack(fence)
  if source and source ~= ARGV[1] then return {"foreign", source, token} end
  if token ~= ARGV[2] or announced ~= ARGV[3] then return {"stale", token or "none"} end
  local stock, lucky = unpack(redis.call("MGET", KEYS[at], KEYS[at + 1]))
  if stock ~= ARGV[wanted] then return {"changed", stock or "none"} end
  -- MGET says of a key that holds something else that it isn't there.
  if not whole(lucky or redis.pcall("GET", KEYS[at + 1]) or "0") then return {"corrupt", KEYS[at + 1]} end
  local orders = redis.call("TYPE", KEYS[at + 5]).ok
  if orders ~= "stream" and orders ~= "none" then return {"corrupt", KEYS[at + 5]} end
  for i = wanted + 3, wanted + 1 + 5 * ARGV[wanted + 1], 5 do
    local buyer, key = ARGV[i], ARGV[i + 1]
    if buyer ~= "" and not whole(redis.pcall("HGET", KEYS[at + 3], buyer) or "0") then
      return {"corrupt", KEYS[at + 3]}
    end
    if key ~= "" and type(redis.pcall("HEXISTS", KEYS[at + 4], key)) == "table" then
      return {"corrupt", KEYS[at + 4]}
    end
  end
end

local function write(at, wanted, sale, era)
  local stock_key, lucky_key, fence_key, buyers_key, settled_key, orders_key = unpack(KEYS, at, at + 5)
  local count = tonumber(ARGV[wanted + 1])
  local sold, first, last, ms, seq = 0, "", nil, nil, nil
  for i = 1, count do
    local quantity, buyer, key, secret, settled = unpack(ARGV, wanted + 5 * i - 3, wanted + 5 * i + 1)
    sold = sold + tonumber(quantity)
    -- The first id is the store's clock, the others follow it, so that the first one tells them all.
    last = redis.call("XADD", orders_key, ms and (ms .. "-" .. string.format("%.0f", seq + i - 1)) or "*",
      "quantity", quantity, "buyer", buyer, "key", key, "secret", secret, "instance", ARGV[4], "token", ARGV[2],
      "batch", ARGV[3], "era", era or "0")
    if i == 1 then
      first = last
      ms, seq = string.match(last, "^(%d+)%-(%d+)$")
      seq = tonumber(seq)
    end
    if buyer ~= "" then redis.call("HINCRBY", buyers_key, buyer, quantity) end
    if key ~= "" then redis.call("HSET", settled_key, key, last .. " " .. settled) end
  end
  if sold > 0 then
    redis.call("DECRBY", stock_key, sold)
    redis.call("INCRBY", lucky_key, sold)
  end
  local refusals_at = wanted + 2 + 5 * count
  for i = 1, tonumber(ARGV[refusals_at]) do
    redis.call("SET", KEYS[at + 5 + i], sale .. " " .. ARGV[refusals_at + i], "PX", ARGV[5])
  end
  if last then
    -- Quicker to read than the end of a stream.
    redis.call("HSET", fence_key, "batch", ARGV[3], "first", first, "last", last)
  else
    redis.call("HSET", fence_key, "batch", ARGV[3], "first", first)
  end
  return {"ok", first, sale}
end

local answers = {}
local at, wanted = 1, 6
while wanted <= #ARGV do
  local fence = redis.call("HMGET", KEYS[at + 2], "source", "token", "announced", "batch", "first", "sale", "era")
  local batch, first_of_batch, sale, era = unpack(fence, 4, 7)
  if batch == ARGV[3] then
    -- The last batch again: its answer was lost on the way. Before all else, as the fence may have moved on since.
    -- Written again, so that there is something to wait for the replicas with.
    redis.call("HSET", KEYS[at + 2], "batch", batch)
    answers[#answers + 1] = {"ok", first_of_batch, sale}
  else
    answers[#answers + 1] = refuse(at, wanted, fence) or write(at, wanted, sale, era)
  end
  local refusals_at = wanted + 2 + 5 * ARGV[wanted + 1]
  at = at + 6 + tonumber(ARGV[refusals_at])
  wanted = refusals_at + tonumber(ARGV[refusals_at]) + 1
end
return answers
