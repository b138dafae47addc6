-- Read what the fences of some items have seen, and whether the orders that the caller expects are there.
--
-- KEYS: of each item
-- Request: items: expected
-- Returns for each item {"ok", source, token, last order, its tag, generation}, or {reason, ...}.

local function inspect(key, item)
  local fence = read_fence(key.fence)
  if odd(fence) then return {"corrupt", key.fence} end
  local lost = missing(key.orders, fence.generation, item.expected)
  if lost then return {"behind", lost} end
  return {"ok", fence.source, fence.token, fence.last, fence.tag or "", fence.generation}
end

local answers = {}
for _, item in ipairs(request.items) do
  local answer, trouble = answer_of(inspect, keys_of_next_item(), item)
  if trouble then return redis.error_reply(trouble) end
  answers[#answers + 1] = answer
end
return answers
