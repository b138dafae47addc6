-- Note how far the events of an item have left, unless a later sender has been here, or another sale has begun.
--
-- KEYS: the item's fence, and its outbox
-- Request: source, token, sale (the generation that the sender has read), text, number (of the note), wish (that is
-- granted)
-- Returns {"ok"}, or {reason, ...}.

local generation = redis.call("HGET", KEYS[1], "generation") or ""
if generation ~= request.sale then return {"changed", generation} end
local source, token, wish, number = unpack(redis.call("HMGET", KEYS[2], "source", "token", "wish", "number"))
local refusal = refuse({source = source, token = token})
if refusal then return refusal end
-- A note that was sent twice, or was long on its way.
if token == request.token and tonumber(number or 0) > tonumber(request.number) then return {"ok"} end
redis.call("HSET", KEYS[2], "text", request.text, "source", request.source, "token", request.token, "number", request.number)
if wish and wish == request.wish then redis.call("HDEL", KEYS[2], "wish") end
return {"ok"}
