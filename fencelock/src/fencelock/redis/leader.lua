-- Read who leads, and the leader's value.
--
-- KEYS: 1 lock, 2 its owner's description
-- Answers {owner, token, value, revision}, or nothing while nobody leads or has said anything.

local owner = redis.call("HKEYS", KEYS[1])[1]
local found = redis.call("HMGET", KEYS[2], "speaker", "token", "said", "revision")
if owner and found[1] == owner then return found end
return {}
