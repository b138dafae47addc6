-- What the fences of some items have seen, if the orders known to the caller are there.
--
-- KEYS: for each item: fence, orders
-- ARGV: for each item: the number of orders known to the caller, sale and entry of each
-- Answers for each item {"ok", source, token}, or {"behind", entry of the order that is missing}.

local answers = {}
local at, known_at = 1, 1
while known_at <= #ARGV do
  local source, token, sale = unpack(redis.call("HMGET", KEYS[at], "source", "token", "sale"))
  local last = known_at + 2 * tonumber(ARGV[known_at])
  local answer = {"ok", source, token}
  for i = known_at + 1, last, 2 do
    if tonumber(sale or "0") <= tonumber(ARGV[i])
      and (sale ~= ARGV[i] or #redis.call("XRANGE", KEYS[at + 1], ARGV[i + 1], ARGV[i + 1]) == 0) then
      answer = {"behind", ARGV[i + 1]}
    end
  end
  answers[#answers + 1] = answer
  at, known_at = at + 2, last + 1
end
return answers
