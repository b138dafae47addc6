-- Write a batch as the articles do: the number that was computed from what was read some time ago, whatever is there now.
--
-- KEYS: 1 stock, 2 lucky, 3 buyers, 4 settled keys, 5 orders
-- ARGV: 1 units left, 2 instance, 3 token, 4 batch id, then for each order: quantity, buyer, key, secret,
--       what its key stands for
-- Answers the ids of the orders. One step, so that whoever looks in between sees no half of it.

local ids = {}
redis.call("SET", KEYS[1], ARGV[1])
for i = 5, #ARGV, 5 do
  local quantity, buyer, key, secret, settled = unpack(ARGV, i, i + 4)
  redis.call("INCRBY", KEYS[2], quantity)
  local id = redis.call("XADD", KEYS[5], "*", "quantity", quantity, "buyer", buyer, "key", key, "secret", secret,
    "instance", ARGV[2], "token", ARGV[3], "batch", ARGV[4])
  ids[#ids + 1] = id
  if buyer ~= "" then redis.call("HINCRBY", KEYS[3], buyer, quantity) end
  if key ~= "" then redis.call("HSET", KEYS[4], key, id .. " " .. settled) end
end
return ids
