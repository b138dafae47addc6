-- Ask the sender of an item's events for something, unless another wish waits than the one that the operator has seen.
--
-- KEYS: the item's outbox
-- Request: wish, instead_of ("": none)
-- Returns "ok", or "another".

if (redis.call("HGET", KEYS[1], "wish") or "") ~= request.instead_of then return "another" end
redis.call("HSET", KEYS[1], "wish", request.wish)
return "ok"
