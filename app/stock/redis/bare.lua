-- Write a batch as the articles do: the stock that was computed from an earlier read, whatever is there now.
--
-- KEYS: of the item
-- Request: stock (the units after this batch), lucky (units to add), entries (the fields of each), buyers (units to add), keys
-- Returns the entries of the orders. It is one atomic step.

local key, numbers = keys_of(1), {}
redis.call("HDEL", key.fence, "sold")  -- the note of a guarded write no longer holds
redis.call("SET", key.stock, request.stock)
redis.call("INCRBY", key.lucky, request.lucky)
for i, fields in ipairs(request.entries) do
  numbers[i] = redis.call("XADD", key.orders, "*", unpack(fields))
  local name = request.keys[i]
  if name[1] ~= "" then redis.call("HSET", key.settled, name[1], numbers[i] .. name[2]) end
end
for _, one in ipairs(request.buyers) do redis.call("HINCRBY", key.buyers, one[1], one[2]) end
return numbers
