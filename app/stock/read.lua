-- Raise the fence to our token, announce the batch that will be written, and read what it needs: one atomic step.
--
-- KEYS: 1 stock, 2 lucky, 3 fence, 4 buyers, 5 settled keys, 6 orders, then one refusal for each key asked for
-- ARGV: 1 source, 2 token, 3 batch id, 4 the number of orders known to the caller, then sale and entry of each,
--       then the number of buyers, then the buyers, then the keys
-- Answers {"ok", stock, lucky, bought of each buyer, what each key stands for, id of the last order, sale},
-- or {reason, ...}.

local stock = redis.call("GET", KEYS[1])
local last = redis.call("XREVRANGE", KEYS[6], "+", "-", "COUNT", 1)
local source, token, sale = unpack(redis.call("HMGET", KEYS[3], "source", "token", "sale"))
if source and source ~= ARGV[1] then return {"foreign", source, token} end
if token and tonumber(token) > tonumber(ARGV[2]) then return {"stale", token} end
-- An order that is known must be there, unless a later sale has begun.
local known = tonumber(ARGV[4])
for i = 5, 4 + 2 * known, 2 do
  if tonumber(sale or "0") <= tonumber(ARGV[i])
    and (sale ~= ARGV[i] or #redis.call("XRANGE", KEYS[6], ARGV[i + 1], ARGV[i + 1]) == 0) then
    return {"behind", ARGV[i + 1]}
  end
end
if not stock then
  redis.call("HDEL", KEYS[3], "announced")
  return {"unknown"}
end
-- From here on no batch but the announced one can be written, not even an older one of the same token.
redis.call("HSET", KEYS[3], "source", ARGV[1], "token", ARGV[2], "announced", ARGV[3])
if not sale then
  -- The first of this store's history. A sale is called by its beginning, in ms.
  local now = redis.call("TIME")
  sale = string.format("%.0f", now[1] * 1000 + math.floor(now[2] / 1000))
  redis.call("HSET", KEYS[3], "sale", sale)
end

local buyers, keys = {}, {}
local at = 5 + 2 * known
local count = tonumber(ARGV[at])
for i = at + 1, at + count do buyers[#buyers + 1] = ARGV[i] end
for i = at + 1 + count, #ARGV do keys[#keys + 1] = ARGV[i] end

local bought, settled = {}, {}
if #buyers > 0 then bought = redis.call("HMGET", KEYS[4], unpack(buyers)) end
if #keys > 0 then
  settled = redis.call("HMGET", KEYS[5], unpack(keys))
  -- A refusal begins with the number of its sale; one of an earlier sale doesn't count in this one.
  local this_sale = sale .. " "
  for i = 1, #keys do
    local refusal = not settled[i] and redis.call("GET", KEYS[6 + i])
    if refusal and string.sub(refusal, 1, #this_sale) == this_sale then
      settled[i] = " " .. string.sub(refusal, #this_sale + 1)
    end
  end
end
return {"ok", stock, redis.call("GET", KEYS[2]) or "0", bought, settled, last[1] and last[1][1] or false, sale}
