-- The common part of the scripts beside this file, put before each of them. A script has one argument, a JSON object,
-- in which numbers are strings, so that nothing is rounded. They know no rule of the sale: see app/stock.

local request = cjson.decode(ARGV[1])

-- The keys of an item, in the order of `Keys.all` in keys.py.
local NAMES = {
  "stock", "lucky", "fence", "buyers", "settled", "orders", "refused", "refused_before", "records", "due", "payments",
  "holders", "waiting", "log", "outbox",
}
local function keys_of(place)
  local key = {}
  for i = 1, #NAMES do key[NAMES[i]] = KEYS[(place - 1) * #NAMES + i] end
  return key
end

-- The fields of an item's fence hash, in the order of `_head` in storage.py: see `Head` in app/stock/storage.py. `sold` is
-- the units sold as of the end of the last write, with its batch.
local FENCE = {
  "source", "token", "prepared", "batch", "last", "tag", "terms", "generation", "sale", "epoch", "initial", "held",
  "changes", "erasures", "layout", "waiting", "wants", "sold",
}

local function read_fence(name)
  local values, fence = redis.call("HMGET", name, unpack(FENCE)), {}
  for i = 1, #FENCE do fence[FENCE[i]] = values[i] or nil end
  return values, fence
end

-- Whether a fence holds values that none of our scripts has written.
local NUMBERS = {2, 8, 9, 10, 12, 13, 14, 15, 16, 17}  -- places in FENCE
local function odd(values)
  local last = values[5]
  if not values[1] ~= not values[2] or (last and not (#last <= 41 and string.find(last, "^%d+%-%d+$"))) then return true end
  for i = 1, #NUMBERS do
    local text = values[NUMBERS[i]]
    if text and (#text > 16 or text == "" or string.find(text, "%D")) then return true end
  end
end

-- MGET is cheaper than two calls, but returns nil for a key of another type, too.
local function read_units(key)
  local stock, lucky = unpack(redis.call("MGET", key.stock, key.lucky))
  if not stock then stock = redis.call("GET", key.stock) end
  if not lucky and stock then lucky = redis.call("GET", key.lucky) end
  return stock, lucky
end

-- The time stands still in a script.
local time = redis.call("TIME")
local now_ms, now_us = time[1] * 1000 + math.floor(time[2] / 1000), time[1] .. string.format("%06d", time[2])

-- The first key of an item that holds a foreign type.
local KINDS = {
  stock = "string", lucky = "string", fence = "hash", buyers = "hash", settled = "hash", orders = "stream",
  refused = "hash", refused_before = "hash", records = "hash", due = "zset", payments = "hash", holders = "hash",
  waiting = "zset", log = "stream", outbox = "hash",
}

local function foreign_type(key)
  for _, name in ipairs(NAMES) do
    local found = redis.call("TYPE", key[name]).ok
    if found ~= "none" and found ~= KINDS[name] then return key[name] end
  end
end

-- Do the work for each item, and return the answers. An item with a key of a foreign type has an answer of its own.
local function answers_of(work)
  local answers = {}
  for place, item in ipairs(request.items) do
    local key = keys_of(place)
    local done, answer = pcall(work, key, item, place)
    if not done then
      -- If nothing was written yet, this says so; else it is in doubt.
      local text = type(answer) == "table" and answer.err or tostring(answer)
      local odd = string.find(text, "WRONGTYPE", 1, true) and foreign_type(key)
      if not odd then return redis.error_reply(text) end
      answer = {"corrupt", odd}
    end
    answers[#answers + 1] = answer
  end
  return answers
end
