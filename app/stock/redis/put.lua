-- Write things of some items, of each all or nothing, if its head is as it was found.
--
-- KEYS: of each item
-- Request: items: expect (fields of the fence, and "stock" and "lucky"; "" for none), batch ("": none), lucky (units to add), writes (commands),
-- fence (fields to set at the end), refused (keys, and what each stands for) with now_ms and refusal_ttl_ms
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

local function put(key, item)
  local values, fence = read_fence(key.fence)
  if item.batch ~= "" and fence.batch == item.batch then
    -- The last batch again: its answer was lost. The field is written again, so that WAIT has a write to wait for.
    redis.call("HSET", key.fence, "batch", fence.batch)
    return {"again"}
  end
  if odd(values) then return {"corrupt", key.fence} end
  local stock, lucky = read_units(key)
  for field, value in pairs(item.expect) do
    local found = fence[field]
    if field == "stock" then found = stock elseif field == "lucky" then found = lucky or "0" end
    if (found or "") ~= value then
      return {"not", values, stock, lucky or false, now_us}
    end
  end
  local why = refusal(key, item)
  if why then return why end
  -- Somebody else may have written to the stream: then our first number is not above its last one. Nothing is written,
  -- and who looks again learns the last one from the stream itself.
  local first = 0
  for i, command in ipairs(item.writes) do
    if command[1] == "XADD" and command[2] == key.orders and command[3] ~= "MAXLEN" then
      first = i
      local reply = redis.pcall(unpack(command))
      local failed = type(reply) == "table" and reply.err
      if failed and not string.find(failed, "equal or smaller", 1, true) then error(reply) end
      if failed then
        redis.call("HDEL", key.fence, "last", "tag")
        return {"not", values, stock, lucky or false, now_us}
      end
      break
    end
  end
  -- The order makes a partial write noticed, and sells nothing twice: first the units, last the note of them.
  if item.lucky ~= "0" then lucky = redis.call("INCRBY", key.lucky, item.lucky) end
  for i, command in ipairs(item.writes) do
    if i ~= first then redis.call(unpack(command)) end
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
  return {"ok"}
end

return answers_of(put)
