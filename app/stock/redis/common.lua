-- What the scripts beside this file have in common: it is put before each of them.

-- Whether a call's answer is a whole number of 0 or more that Lua can count with; an error is none.
local function whole(text)
  return text == "0" or (type(text) == "string" and string.match(text, "^[1-9]%d*$") and #text <= 15)
end

-- The entry of an order that is known to the caller and not there, unless a later sale has begun; else nothing.
-- ARGV[first] to ARGV[last]: sale and entry of each.
local function missing(orders_key, sale, first, last)
  for i = first, last, 2 do
    if tonumber(sale or "0") <= tonumber(ARGV[i])
      and (sale ~= ARGV[i] or #redis.call("XRANGE", orders_key, ARGV[i + 1], ARGV[i + 1]) == 0) then
      return ARGV[i + 1]
    end
  end
end


local function number_if_any(text)
  return not text or tonumber(text)
end

-- Whether a fence holds what none of our scripts has written.
local function odd(source, token, sale, era)
  return not source ~= not token or not (number_if_any(token) and number_if_any(sale) and number_if_any(era))
end

-- What `look(...)` says of an item; or, if it stumbles on something that is not ours under one of the item's keys, which
-- that is: KEYS[at] and those behind it are to hold `kinds`, or it is KEYS[fence_at]. All else that can go wrong is the
-- server's business: nil, and what it says.
local function answer_of(look, at, kinds, fence_at, ...)
  local done, answer = pcall(look, ...)
  if done then return answer end
  local text = type(answer) == "table" and answer.err or tostring(answer)
  if string.find(text, "WRONGTYPE", 1, true) then
    for i, kind in ipairs(kinds) do
      local found = redis.call("TYPE", KEYS[at + i - 1]).ok
      if found ~= "none" and found ~= kind then return {"corrupt", KEYS[at + i - 1]} end
    end
  end
  if string.find(text, "Invalid stream ID", 1, true) then return {"corrupt", KEYS[fence_at]} end
  return nil, text
end
