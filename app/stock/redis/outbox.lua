-- Note how far the events of an item have left to a receiver, unless a later sender has been here, or another sale has begun.
--
-- KEYS: the item's fence, and its outbox
-- Request: source, token, sale (that the sender has read), text, number (of the note), wish (that is
-- granted), suffix (of the receiver's fields)
-- Returns {"ok"}, or {reason, ...}.

local suffix = request.suffix
local sale = sale_of(KEYS[1])
if sale ~= request.sale then return {"changed", sale} end
local source, token, wish, number = unpack(redis.call("HMGET", KEYS[2],
  "source" .. suffix, "token" .. suffix, "wish" .. suffix, "number" .. suffix))
local refusal = refuse({source = source, token = token})
if refusal then return refusal end
-- A note that was sent twice, or was long on its way.
if token == request.token and tonumber(number or 0) > tonumber(request.number) then return {"ok"} end
redis.call("HSET", KEYS[2], "text" .. suffix, request.text, "source" .. suffix, request.source, "token" .. suffix, request.token,
  "number" .. suffix, request.number)
if wish and wish == request.wish then redis.call("HDEL", KEYS[2], "wish" .. suffix) end
return {"ok"}
