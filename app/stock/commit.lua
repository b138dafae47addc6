-- Write a batch, if it is the announced one, the fence is still ours and the stock what it was: all of it or nothing.
--
-- KEYS: 1 stock, 2 lucky, 3 fence, 4 buyers, 5 settled keys, 6 orders, then one refusal for each key refused
-- ARGV: 1 source, 2 token, 3 batch id, 4 expected stock, 5 instance, 6 how long refusals are remembered (ms),
--       7 the number of orders, then for each: quantity, buyer, key, secret, what its key stands for;
--       then for each refusal: what its key stands for
-- Answers {"ok", id of the first order, sale}, or {reason, ...}. The other orders have the ids that follow.

local fence = redis.call("HMGET", KEYS[3], "source", "token", "announced", "batch", "first", "sale", "era")
local source, token, announced, batch, first_of_batch, sale, era = unpack(fence)
-- The last batch again: its answer was lost on the way. Before all else, as the fence may have moved on since.
-- Written again, so that there is something to wait for the replicas with.
if batch == ARGV[3] then
  redis.call("HSET", KEYS[3], "batch", batch)
  return {"ok", first_of_batch, sale}
end
if source and source ~= ARGV[1] then return {"foreign", source, token} end
if token ~= ARGV[2] or announced ~= ARGV[3] then return {"stale", token or "none"} end
local stock = redis.call("GET", KEYS[1])
if stock ~= ARGV[4] then return {"changed", stock or "none"} end

-- A script that fails half-way is not undone, so look first at everything that a write below could stumble on.
local function whole(text) return text == "0" or (string.match(text, "^[1-9]%d*$") and #text <= 15) end
for i, wanted in pairs({[4] = "hash", [5] = "hash", [6] = "stream"}) do
  local found = redis.call("TYPE", KEYS[i]).ok
  if found ~= "none" and found ~= wanted then return {"corrupt", KEYS[i]} end
end
if not whole(redis.call("GET", KEYS[2]) or "0") then return {"corrupt", KEYS[2]} end
local count = tonumber(ARGV[7])
for i = 9, 8 + count * 5, 5 do
  if ARGV[i] ~= "" and not whole(redis.call("HGET", KEYS[4], ARGV[i]) or "0") then return {"corrupt", KEYS[4]} end
end

local sold, first, ms, seq = 0, "", nil, nil
for i = 1, count do
  local quantity, buyer, key, secret, settled = unpack(ARGV, 8 + (i - 1) * 5, 12 + (i - 1) * 5)
  sold = sold + tonumber(quantity)
  -- The first id is the store's clock, the others follow it, so that the first one tells them all.
  local id = redis.call("XADD", KEYS[6], ms and (ms .. "-" .. string.format("%.0f", seq + i - 1)) or "*",
    "quantity", quantity, "buyer", buyer, "key", key, "secret", secret, "instance", ARGV[5], "token", ARGV[2],
    "batch", ARGV[3], "era", era or "0")
  if i == 1 then
    first = id
    ms, seq = string.match(id, "^(%d+)%-(%d+)$")
    seq = tonumber(seq)
  end
  if buyer ~= "" then redis.call("HINCRBY", KEYS[4], buyer, quantity) end
  if key ~= "" then redis.call("HSET", KEYS[5], key, id .. " " .. settled) end
end
if sold > 0 then
  redis.call("DECRBY", KEYS[1], sold)
  redis.call("INCRBY", KEYS[2], sold)
end
for i = 7, #KEYS do
  redis.call("SET", KEYS[i], sale .. " " .. ARGV[7 + count * 5 + i - 6], "PX", ARGV[6])
end
redis.call("HSET", KEYS[3], "batch", ARGV[3], "first", first)
return {"ok", first, sale}
