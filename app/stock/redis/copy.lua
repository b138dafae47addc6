-- Copy entries of the journal, with "erased" in the place of a buyer's name: an entry of a stream can't be changed. The copy
-- takes the stream's place by a put.
--
-- KEYS: of the item, the copy
-- Request: buyer, after (the last entry that was copied, "" for the first), count ("0": all)
-- Returns {last entry, how many were copied, {entry, fields, ...} of those with the name}.

local key, copy = keys_of(1), KEYS[#NAMES + 1]
local last, copied, found = request.after, 0, {}
if last == "" then redis.call("UNLINK", copy) end
local from = last == "" and "-" or "(" .. last
local page = request.count == "0" and redis.call("XRANGE", key.orders, from, "+")
  or redis.call("XRANGE", key.orders, from, "+", "COUNT", request.count)
for _, entry in ipairs(page) do
  local fields, has = entry[2], false
  for i = 1, #fields, 2 do
    if fields[i] == "buyer" and fields[i + 1] == request.buyer then has, fields[i + 1] = true, "erased" end
  end
  redis.call("XADD", copy, entry[1], unpack(fields))
  if has then
    found[#found + 1] = entry[1]
    found[#found + 1] = fields
  end
  last, copied = entry[1], copied + 1
end
redis.call("PEXPIRE", copy, 3600000)  -- if this is never ended
return {last, copied, found}
