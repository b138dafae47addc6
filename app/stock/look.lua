-- What the fences of some items have seen, if the orders known to the caller are there.
--
-- KEYS: for each item: fence, orders
-- ARGV: for each item: the number of orders known to the caller, sale and entry of each
-- Answers for each item {"ok", source, token}, or {"behind", entry of an order that is missing, and sale and entry of
-- each of those}.

local answers = {}
local at, known_at = 1, 1
while known_at <= #ARGV do
  local source, token, sale = unpack(redis.call("HMGET", KEYS[at], "source", "token", "sale"))
  local last = known_at + 2 * tonumber(ARGV[known_at])
  local lost = {}
  for i = known_at + 1, last, 2 do
    if missing(KEYS[at + 1], sale, i, i + 1) then
      lost[#lost + 1] = ARGV[i]
      lost[#lost + 1] = ARGV[i + 1]
    end
  end
  answers[#answers + 1] = #lost > 0 and {"behind", lost[2], unpack(lost)} or {"ok", source, token}
  at, known_at = at + 2, last + 1
end
return answers
