-- Replace a field of a hash, if it is as it was read.
--
-- KEYS: the hash
-- Request: field, old, new ("": none)
-- Returns whether it was done: 1 or 0.

if (redis.call("HGET", KEYS[1], request.field) or "") ~= request.old then return 0 end
if request.new == "" then
  redis.call("HDEL", KEYS[1], request.field)
else
  redis.call("HSET", KEYS[1], request.field, request.new)
end
return 1
