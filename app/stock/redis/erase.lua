-- Put "erased" in the place of a buyer's name. An entry of a stream can't be changed, so the stream is copied in parts,
-- without a lock, as entries are only ever added; the last call, under the fence, copies the rest, and has the copy take
-- the stream's place.
--
-- KEYS: of the item, its log, the copy
-- Request: buyer, forms (the name in JSON), step ("look", "copy", "end"); to copy: after (the last entry that was copied, ""
-- for the first), count; at the end, too: source, token, generation, erasures, numbers and keys (what the earlier calls have
-- found), by, what
-- Returns {"ok", whether the name is there, generation, how many were erased before}, or {"ok", last entry, number of
-- entries, numbers and keys of those with the name}, or {reason, ...}.

local key, copy, buyer = keys_of_next_item(), KEYS[14], request.buyer
local ERASED = "erased"
request.forms[#request.forms + 1] = cjson.encode(buyer)

-- A text of ours with another name in it, or nothing if it has not that name. In JSON's texts quotes are escaped, so this
-- is found nowhere else.
local function without(text)
  for _, form in ipairs(request.forms) do
    local from, to = string.find(text, '"buyer":' .. form, 1, true)
    if from then return string.sub(text, 1, from - 1) .. '"buyer":"' .. ERASED .. '"' .. string.sub(text, to + 1) end
  end
end

local function refusals()
  local found = {}
  for _, name in ipairs({key.refused, key.refused_before}) do
    local all = redis.call("HGETALL", name)
    for i = 1, #all, 2 do
      local changed = without(all[i + 1])
      if changed then found[#found + 1] = {name, all[i], changed} end
    end
  end
  return found
end

local fence = read_fence(key.fence)
if odd(fence) then return {"corrupt", key.fence} end
if request.step == "look" then
  local there = redis.call("HEXISTS", key.buyers, buyer) + redis.call("HEXISTS", key.holders, buyer) + #refusals()
  return {"ok", there, fence.generation or "", redis.call("HGET", key.fence, "erasures") or "0"}
end

local last, copied, numbers, names = request.after, 0, request.numbers or {}, request.keys or {}
local function copy_entries(...)
  for _, entry in ipairs(redis.call("XRANGE", key.orders, last == "" and "-" or "(" .. last, "+", ...)) do
    local fields, has, name = entry[2], false, ""
    for i = 1, #fields, 2 do
      if fields[i] == "buyer" and fields[i + 1] == buyer then has, fields[i + 1] = true, ERASED end
      if fields[i] == "key" then name = fields[i + 1] end
    end
    if has then
      numbers[#numbers + 1] = entry[1]
      if name ~= "" then names[#names + 1] = name end
    end
    redis.call("XADD", copy, entry[1], unpack(fields))
    last, copied = entry[1], copied + 1
  end
end

if request.step == "copy" then
  if last == "" then redis.call("UNLINK", copy) end
  copy_entries("COUNT", request.count)
  redis.call("PEXPIRE", copy, 3600000)  -- if this is never ended
  return {"ok", last, copied, numbers, names}
end

local refusal = refuse(fence)
if refusal then return refusal end
local may_not = forbidden(key)
if may_not then return {"forbidden", may_not} end
if (fence.generation or "") ~= request.generation then return {"changed", "generation"} end
-- The copy has the names that others have erased meanwhile.
if (redis.call("HGET", key.fence, "erasures") or "0") ~= request.erasures then return {"changed", "erasures"} end
copy_entries()
local first = redis.call("XRANGE", key.orders, "-", "+", "COUNT", 1)[1]
if first then redis.call("XTRIM", copy, "MINID", "=", first[1]) end  -- as the stream was meanwhile
if first and redis.call("XLEN", copy) ~= redis.call("XLEN", key.orders) then return {"changed", "orders"} end
note({}, {erased = #numbers})
if first then
  local about, newest = redis.call("XINFO", "STREAM", key.orders), nil
  for i = 1, #about, 2 do if about[i] == "last-generated-id" then newest = about[i + 1] end end
  redis.call("XSETID", copy, newest)
  redis.call("PERSIST", copy)
  redis.call("RENAME", copy, key.orders)
end
for _, number in ipairs(numbers) do
  local record = redis.call("HGET", key.records, number)
  local changed = record and without(record)
  if changed then redis.call("HSET", key.records, number, changed) end
end
for _, name in ipairs(names) do
  local settled = redis.call("HGET", key.settled, name)
  local changed = settled and without(settled)
  if changed then redis.call("HSET", key.settled, name, changed) end
end
for _, one in ipairs(refusals()) do redis.call("HSET", one[1], one[2], one[3]) end
local units = redis.call("HGET", key.buyers, buyer)
if units then
  redis.call("HDEL", key.buyers, buyer)
  redis.call("HINCRBY", key.buyers, ERASED, units)
end
redis.call("HDEL", key.holders, buyer)
-- A batch that is prepared may have the name.
redis.call("HSET", key.fence, "source", request.source, "token", request.token)
redis.call("HDEL", key.fence, "prepared")
redis.call("HINCRBY", key.fence, "erasures", 1)
return {"ok", last, copied, numbers, names}
