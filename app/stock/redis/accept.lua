-- Begin a new generation with all that is there, so that no earlier order is expected any more. The sale goes on.
--
-- KEYS: of the item, and its log
-- Request: expected, by, what

local key = keys_of_next_item()
local generation = redis.call("HGET", key.fence, "generation")
local after = next_generation(generation, request.expected)
note({generation = generation or nil}, {generation = after})
if generation then redis.call("HSETNX", key.fence, "sale", generation) end
redis.call("HSET", key.fence, "generation", after)
if not generation then redis.call("HSET", key.fence, "layout", LAYOUT) end
return "ok"
