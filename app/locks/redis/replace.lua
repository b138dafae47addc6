-- Compare and set, each key by itself: set it if it holds what it is to replace.
--
-- KEYS: the keys
-- ARGV: for each key: "1" if it is to hold something, what that is, what it is to hold then
-- Answers for each key 1 or 0.

local done = {}
for i, key in ipairs(KEYS) do
  local held, wanted = redis.call("GET", key), ARGV[3 * i - 2] == "1" and ARGV[3 * i - 1]
  done[i] = held == wanted and 1 or 0
  if held == wanted then redis.call("SET", key, ARGV[3 * i]) end
end
return done
