-- activity_now, revision 1
-- Returns the views and the distinct visitors of the window.
--
-- KEYS
--   1 calls         hash      of the home partition: =stripes, =layer, =layers
--   2 views:STRIPE:PAGE...     hash  layer -> views in it
--   3 visitors:STRIPE:PAGE...  zset  visitor -> -ms: when it was seen last, below 0; then both keys
--                                    of the next place, of 100 at most
-- ARGV
--   1 stripes       integer   of a page, as family_epoch returned it
--   2 now_ms        integer   "" for the server's clock; anything else is for tests
-- REPLIES
--   {"OK", views, visitors...}  integers, for each place both; 0 without visitors
--   {"MISMATCH"}              a page has another number of stripes, or the family was not
--                             configured in this Redis
-- ERRORS
--   BADARG                    the arguments do not fit the keys
-- REPEAT  safe: it only reads
-- SINCE   0.1.0
-- CALLER  Partition::seen in src/scripts/partition/activity.rs
-- VECTORS lua/vectors/activity_now.json

local calls, stripes, test_ms = KEYS[1], ARGV[1], ARGV[2]
if #ARGV ~= 2 or #KEYS < 3 or #KEYS > 201 or #KEYS % 2 == 0 then
  return redis.error_reply('BADARG expected calls, 2 keys a place, 1 to 100; stripes and now_ms')
end
local state = redis.call('HMGET', calls, '=stripes', '=layer', '=layers')
local family_stripes, layer_ms, layers = unpack(state)
local time = redis.call('TIME')
if family_stripes ~= stripes then return { 'MISMATCH' } end

-- find the window: layers up to `gone` have left it
local now_ms = tonumber(test_ms) or time[1] * 1000 + math.floor(time[2] / 1000)
local gone = math.floor(now_ms / layer_ms) - layers
local since_ms = (gone + 1) * layer_ms

-- add up the views of each place, and count its visitors
local reply = { 'OK' }
for key = 2, #KEYS, 2 do
  local views_key, visitors_key = KEYS[key], KEYS[key + 1]
  local fields, views = redis.call('HGETALL', views_key), 0
  for i = 1, #fields, 2 do
    local layer, views_of_layer = tonumber(fields[i]), tonumber(fields[i + 1])
    -- a field that is not a layer does not count, nor does a layer that has left the window
    local is_in_window = (layer or gone) > gone
    if is_in_window then views = views + (views_of_layer or 0) end
  end
  reply[#reply + 1] = views
  reply[#reply + 1] = redis.call('ZCOUNT', visitors_key, '-inf', -since_ms)
end
return reply
