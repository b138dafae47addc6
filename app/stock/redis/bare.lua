-- Write a batch as the articles do: the stock that was computed from an earlier read, whatever is there now.
--
-- KEYS: of the item
-- Request: stock (the units after this batch), instance, token, batch; sold: of each order quantity, buyer, key, secret
-- Returns the entries of the orders. It is one atomic step.

local key, entries = keys_of_next_item(), {}
redis.call("HDEL", key.fence, "sold")  -- the note of a guarded write no longer holds
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
