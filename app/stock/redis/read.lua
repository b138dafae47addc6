-- Raise the fences of some items to our token, announce the batch that will be written, and read what it needs: one
-- atomic step. An item that can't be sold does not stop the others.
--
-- KEYS: for each item: stock, lucky, fence, buyers, settled keys, orders, then one refusal for each key asked for
-- ARGV: 1 source, 2 token, 3 batch id, then for each item: the number of orders known to the caller, sale and entry of
--       each; the number of buyers, the buyers; the number of keys, the keys
-- Answers for each item {"ok", stock, lucky, bought of each buyer, what each key stands for, id of the last order,
-- sale, era}, or {reason, ...}.

-- `at`: where the item's keys begin; the others: where its counts are in ARGV.
local function read(at, known_at, buyers_at, keys_at)
  local stock_key, lucky_key, fence_key, buyers_key, settled_key, orders_key = unpack(KEYS, at, at + 5)
  local source, token, sale, last, era =
    unpack(redis.call("HMGET", fence_key, "source", "token", "sale", "last", "era"))
  if odd(source, token, sale, era) then return {"corrupt", fence_key} end
  if source and source ~= ARGV[1] then return {"foreign", source, token} end
  if token and tonumber(token) > tonumber(ARGV[2]) then return {"stale", token} end
  local lost = missing(orders_key, sale, known_at + 1, buyers_at - 1)
  if lost then return {"behind", lost} end
  -- One call is cheaper than two, but says of a key that holds something else that it isn't there.
  local stock, lucky = unpack(redis.call("MGET", stock_key, lucky_key))
  if not (stock and lucky) then
    stock, lucky = redis.call("GET", stock_key), redis.call("GET", lucky_key) or "0"
  end
  if not stock then
    -- Nothing that is on its way may be written, even if the stock comes back.
    if token then redis.call("HSET", fence_key, "source", ARGV[1], "token", ARGV[2], "announced", ARGV[3]) end
    return {"unknown"}
  end

  local bought, settled = {}, {}
  local buyers, keys = tonumber(ARGV[buyers_at]), tonumber(ARGV[keys_at])
  if buyers > 0 then bought = redis.call("HMGET", buyers_key, unpack(ARGV, buyers_at + 1, buyers_at + buyers)) end
  if keys > 0 then settled = redis.call("HMGET", settled_key, unpack(ARGV, keys_at + 1, keys_at + keys)) end
  if not whole(stock) then return {"no number", stock_key} end
  if not whole(lucky) then return {"no number", lucky_key} end

  -- From here on no batch but the announced one can be written, not even an older one of the same token.
  redis.call("HSET", fence_key, "source", ARGV[1], "token", ARGV[2], "announced", ARGV[3])
  if not sale then
    -- The first of this store's history. A sale is called by its beginning, in ms.
    local now = redis.call("TIME")
    sale = string.format("%.0f", now[1] * 1000 + math.floor(now[2] / 1000))
    redis.call("HSET", fence_key, "sale", sale)
  end
  -- A refusal begins with the number of its sale; one of an earlier sale doesn't count in this one.
  local this_sale = sale .. " "
  for i = 1, keys do
    local refusal = not settled[i] and redis.call("GET", KEYS[at + 5 + i])
    if refusal and string.sub(refusal, 1, #this_sale) == this_sale then
      settled[i] = " " .. string.sub(refusal, #this_sale + 1)
    end
  end
  if not last then
    last = redis.call("XREVRANGE", orders_key, "+", "-", "COUNT", 1)
    last = last[1] and last[1][1]
  end
  return {"ok", stock, lucky, bought, settled, last or false, sale, era or "0"}
end

local answers = {}
local at, known_at = 1, 4
while known_at <= #ARGV do
  local buyers_at = known_at + 2 * tonumber(ARGV[known_at]) + 1
  local keys_at = buyers_at + tonumber(ARGV[buyers_at]) + 1
  local kinds = {"string", "string", "hash", "hash", "hash", "stream"}
  for _ = 1, tonumber(ARGV[keys_at]) do kinds[#kinds + 1] = "string" end
  local answer, trouble = answer_of(read, at, kinds, at + 2, at, known_at, buyers_at, keys_at)
  if trouble then return redis.error_reply(trouble) end
  answers[#answers + 1] = answer
  at = at + 6 + tonumber(ARGV[keys_at])
  known_at = keys_at + tonumber(ARGV[keys_at]) + 1
end
return answers
