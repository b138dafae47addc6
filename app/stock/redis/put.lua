-- Write things of some items, of each all or nothing, if its head is as it was found.
--
-- KEYS: of each item
-- Request: items: expect (fields of the fence, and "stock" and "lucky"; "" for none), batch ("": none), lucky (units to add), writes (commands),
-- fence (fields to set at the end), refused (keys, and what each stands for) with now_ms and refusal_ttl_ms, together (so many items,
-- of which this is the first, are written as a whole or not at all)
-- Returns for each item {"ok"}, {"again"}, {"not", fence, stock, lucky, now in µs}, {"corrupt", key},
-- {"forbidden", command} or {"gone"}.

local REFUSALS_MAX = 10000  -- of an item, in each of its two hashes
local TYPES = {
  HSET = "hash", HDEL = "hash", HINCRBY = "hash", XADD = "stream", ZADD = "zset", ZREM = "zset", INCRBY = "string",
}

-- A script that fails half-way is not rolled back, so check first everything that could make a write fail: may we run
-- each command, and is its key of the right type? All that is read is read before. Of the keys themselves the server has
-- asked at the call.
local may = {}
local function forbids(command)
  local name = command[1]
  if may[name] == nil then
    may[name] = not redis.acl_check_cmd or redis.acl_check_cmd(unpack(command))  -- Redis 7
  end
  return not may[name]
end

local function refusal(key, item)
  local known = {[key.fence] = true, [key.lucky] = true}  -- of these the type is known, as they were read
  if forbids({"HSET", key.fence, "a", "b"}) then return {"forbidden", "HSET"} end
  if forbids({"INCRBY", key.lucky, "1"}) then return {"forbidden", "INCRBY"} end
  if item.refused then
    for _, command in ipairs({
      {"RENAME", key.refused, key.refused_before}, {"UNLINK", key.refused_before}, {"PEXPIRE", key.refused, "1"},
    }) do
      if forbids(command) then return {"forbidden", command[1]} end
    end
    local found = redis.call("TYPE", key.refused).ok
    if found ~= "none" and found ~= "hash" then return {"corrupt", key.refused} end
    item.begun, item.full = redis.call("HGET", key.refused, ""), redis.call("HLEN", key.refused) > REFUSALS_MAX
  end
  for _, command in ipairs(item.writes) do
    local name, of = command[1], command[2]
    if forbids(command) then return {"forbidden", name} end
    if name == "RENAME" and redis.call("TYPE", of).ok == "none" then return {"gone"} end  -- an erasure's copy
    if name == "UNLINK" then
      for i = 2, #command do known[command[i]] = true end  -- whatever it was
    end
    local kind = TYPES[name]
    if kind and not known[of] then
      known[of] = true
      local found = redis.call("TYPE", of).ok
      if found ~= "none" and found ~= kind then return {"corrupt", of} end
    end
  end
end

-- Remember refusals, in a hash that replaces the older one when it is full, or too old.
local function remember(key, item)
  local ttl_ms, begun = tonumber(item.refusal_ttl_ms), item.begun
  local too_old = begun and item.now_ms - (tonumber(begun) or 0) > ttl_ms
  if too_old or item.full then
    redis.call("UNLINK", key.refused_before)
    redis.call("RENAME", key.refused, key.refused_before)
    redis.call("PEXPIRE", key.refused_before, item.refusal_ttl_ms)
    begun = nil
  end
  if not begun then redis.call("HSET", key.refused, "", item.now_ms) end
  redis.call("HSET", key.refused, unpack(item.refused))
  redis.call("PEXPIRE", key.refused, string.format("%.0f", 2 * ttl_ms))
end

-- The answer to an item that is not to be written: its last batch again, or the reason; nil: write it.
local function why_not(key, item)
  local values, fence = read_fence(key.fence)
  if item.batch ~= "" and fence.batch == item.batch then
    -- The last batch again: its answer was lost. The field is written again, so that WAIT has a write to wait for.
    redis.call("HSET", key.fence, "batch", fence.batch)
    return {"again"}
  end
  if odd(values) then return {"corrupt", key.fence} end
  local stock, lucky = read_units(key)
  item.unwritten = {"not", values, stock, lucky or false, now_us}
  for field, value in pairs(item.expect) do
    local found = fence[field]
    if field == "stock" then found = stock elseif field == "lucky" then found = lucky or "0" end
    if (found or "") ~= value then return item.unwritten end
  end
  item.sold = lucky
  return refusal(key, item)
end

-- Write the first entry of the journal. Somebody else may have written to the stream: then our first number is not above
-- its last one. Nothing is written, and who looks again learns the last one from the stream itself.
local function begin(key, item)
  item.first = 0
  for i, command in ipairs(item.writes) do
    if command[1] == "XADD" and command[2] == key.orders and command[3] ~= "MAXLEN" then
      item.first = i
      local reply = redis.pcall(unpack(command))
      local failed = type(reply) == "table" and reply.err
      if failed and not string.find(failed, "equal or smaller", 1, true) then error(reply) end
      if failed then redis.call("HDEL", key.fence, "last", "tag") end
      return not failed
    end
  end
  return true
end

-- The order makes a partial write noticed, and sells nothing twice: first the units, last the note of them.
local function write(key, item)
  local lucky = item.sold
  if item.lucky ~= "0" then lucky = redis.call("INCRBY", key.lucky, item.lucky) end
  for i, command in ipairs(item.writes) do
    if i ~= item.first then redis.call(unpack(command)) end
  end
  if item.refused then remember(key, item) end
  if item.batch ~= "" then
    local note = item.fence
    note[#note + 1] = "batch"
    note[#note + 1] = item.batch
    note[#note + 1] = "sold"
    note[#note + 1] = string.format("%.0f", lucky or 0) .. " " .. item.batch
  end
  if #item.fence > 0 then redis.call("HSET", key.fence, unpack(item.fence)) end
end

-- The answers of items that are written together with an earlier one; false: it is not known how far they came.
local answered = {}

local function put(_, item, place)
  if answered[place] ~= nil then return answered[place] or error("written together with others, and not answered") end
  local members, again, refused = {}, false, false
  for i = place, place + (tonumber(item.together) or 1) - 1 do
    members[#members + 1] = {place = i, key = keys_of(i), item = request.items[i]}
    answered[i] = false
  end
  for _, one in ipairs(members) do
    if #members > 1 and forbids({"XDEL", one.key.orders, "1-1"}) then return {"forbidden", "XDEL"} end
    local why = why_not(one.key, one.item)
    answered[one.place] = why or false
    again, refused = again or (why and why[1] == "again"), refused or why
  end
  for i, one in ipairs(members) do
    if not refused and not begin(one.key, one.item) then
      refused = true
      for earlier = 1, i - 1 do  -- as if nothing had been written
        local own = members[earlier]
        if own.item.first > 0 then
          redis.call("XDEL", own.key.orders, own.item.writes[own.item.first][3])
          redis.call("HDEL", own.key.fence, "last", "tag")
        end
      end
    end
  end
  for _, one in ipairs(members) do
    if again then
      answered[one.place] = {"again"}
    elseif refused then
      answered[one.place] = answered[one.place] or one.item.unwritten
    else
      write(one.key, one.item)
      answered[one.place] = {"ok"}
    end
  end
  return answered[place]
end

return answers_of(put)
