-- Check that we can write to the store: a replica, or a server out of memory, answers a PING as if all were well.
--
-- KEYS: of an item; and one of our own, which is written
-- Request: instance, commands (of a sale)
-- Returns "ok", or {"forbidden", command}.

for _, command in ipairs(redis.acl_check_cmd and request.commands or {}) do
  if not redis.acl_check_cmd(unpack(command)) then return {"forbidden", command[1]} end
end
redis.call("SET", KEYS[#KEYS], request.instance, "EX", 60)
return "ok"
