-- Begin a new generation with all that is there, so that no order of before is expected any more.
--
-- KEYS: of the item
-- Request: expected

local key = keys_of_next_item()
local generation = redis.call("HGET", key.fence, "generation")
redis.call("HSET", key.fence, "generation", next_generation(generation, request.expected))
return "ok"
