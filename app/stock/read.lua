-- Raise the fence to our token, announce the batch that will be written, and read what it needs: one atomic step.
--
-- KEYS: 1 stock, 2 lucky, 3 fence, 4 buyers, 5 settled keys, 6 orders, then one refusal for each key asked for
-- ARGV: 1 source, 2 token, 3 batch id, 4 the number of buyers, then the buyers, then the keys
-- Answers {"ok", stock, lucky, bought of each buyer, what each key stands for, id of the last order}, or {reason, ...}.

local stock = redis.call("GET", KEYS[1])
local last = redis.call("XREVRANGE", KEYS[6], "+", "-", "COUNT", 1)
local source, token, sale = unpack(redis.call("HMGET", KEYS[3], "source", "token", "sale"))
if source and source ~= ARGV[1] then return {"foreign", source, token} end
if token and tonumber(token) > tonumber(ARGV[2]) then return {"stale", token} end
if not stock then
  redis.call("HDEL", KEYS[3], "announced")
  return {"unknown"}
end
-- From here on no batch but the announced one can be written, not even an older one of the same token.
redis.call("HSET", KEYS[3], "source", ARGV[1], "token", ARGV[2], "announced", ARGV[3])

local buyers, keys = {}, {}
local count = tonumber(ARGV[4])
for i = 5, 4 + count do buyers[#buyers + 1] = ARGV[i] end
for i = 5 + count, #ARGV do keys[#keys + 1] = ARGV[i] end

local bought, settled = {}, {}
if #buyers > 0 then bought = redis.call("HMGET", KEYS[4], unpack(buyers)) end
if #keys > 0 then
  settled = redis.call("HMGET", KEYS[5], unpack(keys))
  -- A refusal begins with the number of its sale; one of an earlier sale doesn't count in this one.
  local this_sale = (sale or "0") .. " "
  for i = 1, #keys do
    local refusal = not settled[i] and redis.call("GET", KEYS[6 + i])
    if refusal and string.sub(refusal, 1, #this_sale) == this_sale then
      settled[i] = " " .. string.sub(refusal, #this_sale + 1)
    end
  end
end
return {"ok", stock, redis.call("GET", KEYS[2]) or "0", bought, settled, last[1] and last[1][1] or false}
