-- Write a batch as the articles do: the number that was computed from what was read some time ago, whatever is there now.
--
-- KEYS: of the item
-- Request: stock (the units after this batch), instance, token, batch; sold: of each order quantity, buyer, key, secret
-- Answers the entries of the orders. One step, so that nobody sees half of it.

local key, entries = keys_of_next_item(), {}
redis.call("HDEL", key.fence, "sold")  -- what is guarded later knows nothing of this
redis.call("SET", key.stock, request.stock)
for _, sold in ipairs(request.sold) do
  local quantity, buyer, name, secret = unpack(sold)
  redis.call("INCRBY", key.lucky, quantity)
  local entry = redis.call("XADD", key.orders, "*", "quantity", quantity, "buyer", buyer, "key", name, "secret", secret,
    "instance", request.instance, "token", request.token, "batch", request.batch)
  entries[#entries + 1] = entry
  if buyer ~= "" then redis.call("HINCRBY", key.buyers, buyer, quantity) end
  if name ~= "" then redis.call("HSET", key.settled, name, entry .. " " .. stands_for(quantity, buyer, secret)) end
end
return entries
