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

