-- Read named things of some items, each at one moment, and raise the fences first, in the same step.
--
-- KEYS: of each item
-- Request: now and then source, token, batch (to be registered), layout (false: any); due_max, line_max; items: buyers, keys, payments,
-- numbers, entries, marks, holds, due, line, whatever of these is asked for: see `Names` in app/stock/storage.py
-- Returns for each item {"ok", fence, stock, lucky, now in µs, units of the buyers, keys, newer and older refusals, holders,
-- payments, due, first due, line, {number, record, ...}, {buyer, units, holder, ...} of these records, {entry, fields, ...} of orders
-- that have none, and of the entries, {mark, secret, ...}}, or
-- {"corrupt", key}. A list that was not asked for is empty.

local AT_ONCE = 1000 -- Lua unpacks some thousand values at most

local function values_of(hash, names)
  if not names or #names == 0 then return {} end
  if #names <= AT_ONCE then return redis.call("HMGET", hash, unpack(names)) end
  local found = {}
  for from = 1, #names, AT_ONCE do
    local last = math.min(from + AT_ONCE - 1, #names)
    local some = redis.call("HMGET", hash, unpack(names, from, last))
    for i = from, last do found[i] = some[i - from + 1] end
  end
  return found
end

local function raise(key, fence, values, there)
  local layout = not request.layout or not fence.generation or fence.layout == request.layout
  if not (there or fence.token) or not layout then return end
  if fence.source and (fence.source ~= request.source or tonumber(fence.token) > tonumber(request.token)) then return end
  redis.call("HSET", key.fence, "source", request.source, "token", request.token, "prepared", request.batch)
  values[1], values[2], values[3] = request.source, request.token, request.batch
end

-- The records of some orders, the entries of those that have none, and what is noted of their buyers.
local function standing(key, numbers)
  local records, about, sales = {}, {}, {}
  local found, buyers = values_of(key.records, numbers), {}
  for i, number in ipairs(numbers) do
    local record = found[i]
    if record then
      records[#records + 1] = number
      records[#records + 1] = record
      local done, own = pcall(cjson.decode, string.match(record, "{.*$") or "")
      if done and type(own) == "table" and type(own.buyer) == "string" then buyers[#buyers + 1] = own.buyer end
    else
      local entry = redis.call("XRANGE", key.orders, number, number)[1]
      if entry then
        sales[#sales + 1] = number
        sales[#sales + 1] = entry[2]
        for i = 1, #entry[2], 2 do
          if entry[2][i] == "buyer" and entry[2][i + 1] ~= "" then buyers[#buyers + 1] = entry[2][i + 1] end
        end
      end
    end
  end
  local units, holders = values_of(key.buyers, buyers), values_of(key.holders, buyers)
  for i, buyer in ipairs(buyers) do
    about[#about + 1] = buyer
    about[#about + 1] = units[i] or "0"
    about[#about + 1] = holders[i] or ""
  end
  return records, about, sales
end

local function look(key, item)
  local values, fence = read_fence(key.fence)
  if odd(values) then return {"corrupt", key.fence} end
  local stock, lucky = read_units(key)
  if request.token and not stock then item = {entries = item.entries, marks = item.marks} end  -- names that strangers invent cost nothing more
  local buyers, keys = values_of(key.buyers, item.buyers), values_of(key.settled, item.keys)
  local refused, before = values_of(key.refused, item.keys), values_of(key.refused_before, item.keys)
  local payments, holders, due, first_due, line = values_of(key.payments, item.payments), {}, {}, false, {}
  if item.due and not request.token then  -- a level says what is there, whoever has written it
    local last = redis.call("XREVRANGE", key.orders, "+", "-", "COUNT", 1)[1]
    if last then values[5], values[6] = last[1], values[6] or "?" end
  end
  if fence.held and fence.held ~= "0" then
    if item.due then first_due = redis.call("ZRANGE", key.due, 0, 0, "WITHSCORES")[2] or false end
    if request.token then
      due = redis.call("ZRANGEBYSCORE", key.due, 0, string.format("%.0f", now_ms), "LIMIT", 0, request.due_max + 1)
    end
  end
  if request.token and fence.waiting and fence.waiting ~= "0" and (item.line or stock ~= "0" or #due > 0) then
    for i, mark in ipairs(redis.call("ZRANGE", key.waiting, 0, request.line_max - 1)) do
      line[i] = string.gsub(mark, "^0*(%d+)%-0*(%d+)$", "%1-%2")
    end
  end
  local numbers, seen, entries = {}, {}, {}
  local function also(number)
    if number and number ~= "" and not seen[number] then
      seen[number] = true
      numbers[#numbers + 1] = number
    end
  end
  for _, number in ipairs(item.numbers or {}) do also(number) end
  for i = 1, #line do also(line[i]) end
  if item.holds or #due > 0 then
    holders = values_of(key.holders, item.buyers)
    for i, number in ipairs(due) do
      if i <= request.due_max then also(number) end
    end
    for i = 1, #holders do also(holders[i]) end
    for i = 1, #payments do also(payments[i]) end
    for i = 1, #keys do also(keys[i] and string.match(keys[i], "^(%d+%-%d+) ")) end
    for i = 1, #refused do
      local text = refused[i] or before[i]
      also(text and string.match(text, "^%d+ %d+ (%d+%-%d+) "))
    end
  end
  local records, about, sales = numbers, numbers, numbers
  if #numbers > 0 then records, about, sales = standing(key, numbers) end
  for _, number in ipairs(item.entries or {}) do
    local entry = redis.call("XRANGE", key.orders, number, number)[1]
    if entry then
      entries[#entries + 1] = number
      entries[#entries + 1] = entry[2]
    end
  end
  local secrets = {}
  for _, number in ipairs(item.marks or {}) do
    local entry = redis.call("XRANGE", key.orders, number, number)[1]
    for i = 1, entry and #entry[2] or 0, 2 do
      if entry[2][i] == "secret" then
        secrets[#secrets + 1] = number
        secrets[#secrets + 1] = entry[2][i + 1]
      end
    end
  end
  if request.token then
    raise(key, fence, values, stock)
    if not fence.last and stock and redis.call("EXISTS", key.orders) == 1 then  -- set by hand, or by an earlier sale
      local stream = redis.pcall("XINFO", "STREAM", key.orders)  -- which may be forbidden
      for i = 1, #stream, 2 do if stream[i] == "last-generated-id" then values[5] = stream[i + 1] end end
      local last = stream.err and redis.call("XREVRANGE", key.orders, "+", "-", "COUNT", 1)[1]
      if last then values[5] = last[1] end
    end
  end
  return {"ok", values, stock, lucky or false, now_us, buyers, keys, refused, before, holders, payments, due, first_due, line,
    records, about, sales, entries, secrets}
end

return answers_of(look)
