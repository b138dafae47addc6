-- What the fences of some items have seen, if the orders known to the caller are there.
--
-- KEYS: for each item: fence, orders
-- ARGV: for each item: the number of orders known to the caller, sale and entry of each
-- Answers for each item {"ok", source, token}, or {"behind", entry of an order that is missing, and sale and entry of
-- each of those}, or {"corrupt", key}.

-- `at`: where the item's keys begin; `first` and `last`: where its orders do, and end, in ARGV.
local function look(at, first, last)
  local source, token, sale, era = unpack(redis.call("HMGET", KEYS[at], "source", "token", "sale", "era"))
  if odd(source, token, sale, era) then return {"corrupt", KEYS[at]} end
  local lost = {}
  for i = first, last, 2 do
    if missing(KEYS[at + 1], sale, i, i + 1) then
      lost[#lost + 1] = ARGV[i]
      lost[#lost + 1] = ARGV[i + 1]
    end
  end
  if #lost > 0 then return {"behind", lost[2], unpack(lost)} end
  return {"ok", source, token}
end

local answers = {}
local at, known_at = 1, 1
while known_at <= #ARGV do
  local last = known_at + 2 * tonumber(ARGV[known_at])
  local answer, trouble = answer_of(look, at, {"hash", "stream"}, at, at, known_at + 1, last)
  if trouble then return redis.error_reply(trouble) end
  answers[#answers + 1] = answer
  at, known_at = at + 2, last + 1
end
return answers
