-- Ask the sender of an item's events to a receiver for something, unless another wish waits than the one that the operator has seen.
--
-- KEYS: the item's outbox
-- Request: wish, instead_of ("": none), field
-- Returns "ok", or "another".

if (redis.call("HGET", KEYS[1], request.field) or "") ~= request.instead_of then return "another" end
redis.call("HSET", KEYS[1], request.field, request.wish)
return "ok"
