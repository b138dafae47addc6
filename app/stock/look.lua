-- What the fence has seen, and the first order known to the caller that is not there.
--
-- KEYS: 1 fence, 2 orders
-- ARGV: sale and entry of each order known to the caller
-- Answers {source, token, entry of the order that is missing}.

local source, token, sale = unpack(redis.call("HMGET", KEYS[1], "source", "token", "sale"))
local missing = false
for i = 1, #ARGV, 2 do
  if tonumber(sale or "0") <= tonumber(ARGV[i])
    and (sale ~= ARGV[i] or #redis.call("XRANGE", KEYS[2], ARGV[i + 1], ARGV[i + 1]) == 0) then
    missing = ARGV[i + 1]
  end
end
return {source, token, missing}
