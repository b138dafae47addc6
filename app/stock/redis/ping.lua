-- Check that we can write to the store: a replica, or a server out of memory, answers a PING as if all were well.
--
-- KEYS: of an item; and one of our own, which is written
-- Request: instance
-- Returns "ok", or {"forbidden", command}.

local may_not = forbidden(keys_of_next_item())
if may_not then return {"forbidden", may_not} end
redis.call("SET", KEYS[13], request.instance, "EX", 60)
return "ok"
