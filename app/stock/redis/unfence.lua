-- Forget the fence of an item, and begin an epoch: its tokens can't be compared with earlier ones.
--
-- KEYS: of the item, its log and its outbox
-- Request: by, what

local key = keys_of_next_item()
local fence = read_fence(key.fence)
note({source = fence.source or nil, token = fence.token or nil}, {})
redis.call("HINCRBY", key.fence, "epoch", 1)
redis.call("HDEL", key.fence, "source", "token", "prepared")
for _, field in ipairs(redis.call("HKEYS", KEYS[14])) do -- the senders'
  if field:match("^source") or field:match("^token") then redis.call("HDEL", KEYS[14], field) end
end
return "ok"
