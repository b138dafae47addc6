-- What the scripts beside this file have in common: it is put before each of them. A script has one argument, a JSON
-- object; its texts and numbers are texts, so that nothing is rounded.

local request = cjson.decode(ARGV[1])

-- The keys of the next item, with those of so many refusals. Its keys are: stock, lucky, fence, buyers, what idempotency
-- keys stand for, orders.
local keys_used = 0
local function keys_of_next_item(refusals)
  local key = {}
  key.stock, key.lucky, key.fence, key.buyers, key.settled, key.orders = unpack(KEYS, keys_used + 1, keys_used + 6)
  key.refusals = {unpack(KEYS, keys_used + 7, keys_used + 6 + refusals)}
  keys_used = keys_used + 6 + refusals
  return key
end

-- What an item's fence hash holds, false for what it doesn't: the highest token that was seen and whose numbers these are;
-- the batch that may be written (`prepared`), the last one that was (`batch`), its first order and the last order of all;
-- the generation (when the sale began, in ms) and the epoch of the tokens; the units that there were at the start.
local FENCE = {"source", "token", "prepared", "batch", "first", "last", "generation", "epoch", "initial"}

local function read_fence(name)
  local values, fence = redis.call("HMGET", name, unpack(FENCE)), {}
  for i, field in ipairs(FENCE) do fence[field] = values[i] end
  return fence
end

-- Whether a call's answer is a whole number of 0 or more that Lua can count with; an error is none.
local function whole(text)
  return text == "0" or (type(text) == "string" and string.match(text, "^[1-9]%d*$") and #text <= 15)
end

local function number_if_any(text)
  return not text or tonumber(text)
end

-- Whether a fence holds what none of our scripts has written.
local function odd(fence)
  return not fence.source ~= not fence.token
    or not (number_if_any(fence.token) and number_if_any(fence.generation) and number_if_any(fence.epoch))
end

-- Why a grant may not use a fence: its token comes from elsewhere, or a higher one was here before; else nothing.
local function refuse_token(fence)
  if fence.source and fence.source ~= request.source then return {"foreign", fence.source, fence.token} end
  if fence.token and tonumber(fence.token) > tonumber(request.token) then return {"stale", fence.token} end
end

-- The first order of those `expected` ({generation, entry} each) that is not there, unless a later generation has begun;
-- else nothing.
local function missing(orders, generation, expected)
  for _, order in ipairs(expected) do
    if tonumber(generation or "0") <= tonumber(order[1])
      and (generation ~= order[1] or #redis.call("XRANGE", orders, order[2], order[2]) == 0) then
      return order[2]
    end
  end
end

-- A number for a generation that begins now: later than `generation` and all that is expected.
local function next_generation(generation, expected)
  local now = redis.call("TIME")
  local number = math.max(now[1] * 1000 + math.floor(now[2] / 1000), tonumber(generation or "0") + 1)
  for _, order in ipairs(expected) do number = math.max(number, tonumber(order[1]) + 1) end
  return string.format("%.0f", number)
end

-- What `look(key, ...)` says of an item; or, if it stumbles on something that is not ours under one of the item's keys,
-- which that is. All else that can go wrong is the server's business: nil, and what it says.
local KINDS = {stock = "string", lucky = "string", fence = "hash", buyers = "hash", settled = "hash", orders = "stream"}

local function answer_of(look, key, ...)
  local done, answer = pcall(look, key, ...)
  if done then return answer end
  local text = type(answer) == "table" and answer.err or tostring(answer)
  if string.find(text, "WRONGTYPE", 1, true) then
    for name, kind in pairs(KINDS) do
      local found = redis.call("TYPE", key[name]).ok
      if found ~= "none" and found ~= kind then return {"corrupt", key[name]} end
    end
    for _, name in ipairs(key.refusals) do
      local found = redis.call("TYPE", name).ok
      if found ~= "none" and found ~= "string" then return {"corrupt", name} end
    end
  end
  if string.find(text, "Invalid stream ID", 1, true) then return {"corrupt", key.fence} end
  return nil, text
end
