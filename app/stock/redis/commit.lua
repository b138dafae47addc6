-- Write a batch of some items, all of an item's or nothing of it. Either the batch was announced by a read: then it is
-- written if it is still the announced one, the fence ours and the stock what it was. Or it was decided without a read:
-- then it is written, and announced thereby, if what it supposes is so.
--
-- KEYS: for each item: stock, lucky, fence, buyers, settled keys, orders, then one refusal for each key refused (or, of
--       a batch that supposes, for each key that is supposed to be new)
-- ARGV: 1 source, 2 token, 3 batch id, 4 instance, 5 how long refusals are remembered (ms), then for each item: the
--       stock that was read, or that is needed; the number of orders, for each: quantity, buyer, key, secret, what its
--       key stands for; the number of refusals, for each: what its key stands for; 0 if the batch was announced, else
--       the number of things supposed, which are: the era; the batch that was announced last under our token; the
--       number of keys that stand for nothing, the keys; the number of buyers who have bought nothing, the buyers; sale
--       and entry of each order known to the caller
-- Answers for each item {"ok", id of the first order, sale, era}, or {reason, ...}. The other orders' ids follow it.

-- Whether a hash has none of the fields ARGV[first] to ARGV[last].
local function none(key, first, last)
  if first > last then return true end
  local found = redis.pcall("HMGET", key, unpack(ARGV, first, last))
  if found.err then return false end
  for i = 1, last - first + 1 do
    if found[i] then return false end
  end
  return true
end

-- Whether what a batch supposes is so; if anything speaks against it, a read will say what. `supposed`: where that
-- begins in ARGV; `stock`: what is left.
local function is_so(at, wanted, supposed, fence, stock)
  local source, token, announced, _, _, sale, era = unpack(fence)
  if source ~= ARGV[1] or not (token and sale) or tonumber(token) > tonumber(ARGV[2]) then return false end
  if (era or "0") ~= ARGV[supposed] then return false end -- tokens of another era say nothing
  -- Under our own token a batch follows a certain other: one that is late finds that something has come in between.
  if token == ARGV[2] and announced ~= ARGV[supposed + 1] then return false end
  if not whole(stock) or tonumber(stock) < tonumber(ARGV[wanted]) then return false end
  local keys = tonumber(ARGV[supposed + 2])
  local keys_end = supposed + 2 + keys
  if not none(KEYS[at + 4], supposed + 3, keys_end) then return false end
  for i = 1, keys do
    if redis.pcall("GET", KEYS[at + 5 + i]) then return false end
  end
  local buyers_end = keys_end + 1 + tonumber(ARGV[keys_end + 1])
  if not none(KEYS[at + 3], keys_end + 2, buyers_end) then return false end
  -- Of this sale: behind these orders the batch's own would be found.
  local things_end = supposed - 1 + tonumber(ARGV[supposed - 1])
  for i = buyers_end + 1, things_end, 2 do
    if sale ~= ARGV[i] then return false end
  end
  return not missing(KEYS[at + 5], sale, buyers_end + 1, things_end)
end

-- Why an item's part can't be written, else nothing. A script that fails half-way is not undone, so look first at
-- everything that a write could stumble on. `at`: where the item's keys begin; `wanted`: where its part of ARGV does.
local function refuse(at, wanted, supposed, fence)
  local source, token, announced = unpack(fence)
  local stock, lucky = unpack(redis.call("MGET", KEYS[at], KEYS[at + 1]))
  local orders = redis.call("TYPE", KEYS[at + 5]).ok
  local sound = orders == "stream" or orders == "none"
  if ARGV[supposed - 1] ~= "0" then
    local told, so = pcall(is_so, at, wanted, supposed, fence, stock) -- what it stumbles on a read will say
    if not (sound and told and so) then return {"otherwise"} end
  else
    if source and source ~= ARGV[1] then return {"foreign", source, token} end
    if token ~= ARGV[2] or announced ~= ARGV[3] then return {"stale", token or "none"} end
    if stock ~= ARGV[wanted] then return {"changed", stock or "none"} end
  end
  -- MGET says of a key that holds something else that it isn't there.
  if not whole(lucky or redis.pcall("GET", KEYS[at + 1]) or "0") then return {"corrupt", KEYS[at + 1]} end
  if not sound then return {"corrupt", KEYS[at + 5]} end
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
    -- The last order is quicker to read here than at the end of a stream.
    redis.call("HSET", fence_key, "token", ARGV[2], "announced", ARGV[3], "batch", ARGV[3], "first", first,
      "last", last)
  else
    redis.call("HSET", fence_key, "batch", ARGV[3], "first", first)
  end
  return {"ok", first, sale, era or "0"}
end

local answers = {}
local at, wanted = 1, 6
while wanted <= #ARGV do
  local fence = redis.pcall("HMGET", KEYS[at + 2], "source", "token", "announced", "batch", "first", "sale", "era")
  local batch, first_of_batch, sale, era = unpack(fence, 4, 7)
  local refusals_at = wanted + 2 + 5 * ARGV[wanted + 1]
  local supposed = refusals_at + tonumber(ARGV[refusals_at]) + 2
  if fence.err or odd(fence[1], fence[2], sale, era) then
    answers[#answers + 1] = {"corrupt", KEYS[at + 2]}
  elseif batch == ARGV[3] then
    -- The last batch again: its answer was lost on the way. Before all else, as the fence may have moved on since.
    -- Written again, so that there is something to wait for the replicas with.
    redis.call("HSET", KEYS[at + 2], "batch", batch)
    answers[#answers + 1] = {"ok", first_of_batch, sale, era or "0"}
  else
    answers[#answers + 1] = refuse(at, wanted, supposed, fence) or write(at, wanted, sale, era)
  end
  local supposes = ARGV[supposed - 1] ~= "0"
  at = at + 6 + tonumber(ARGV[refusals_at]) + (supposes and tonumber(ARGV[supposed + 2]) or 0)
  wanted = supposed + tonumber(ARGV[supposed - 1])
end
return answers
