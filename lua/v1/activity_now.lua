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

if #ARGV ~= 2 or #KEYS < 3 or #KEYS > 201 or #KEYS % 2 == 0 then
  return redis.error_reply('BADARG expected calls, 2 keys a place, 1 to 100; stripes and now_ms')
end
local state = redis.call('HMGET', KEYS[1], '=stripes', '=layer', '=layers')
local time = redis.call('TIME')
if state[1] ~= ARGV[1] then return { 'MISMATCH' } end
local now_ms = tonumber(ARGV[2]) or time[1] * 1000 + math.floor(time[2] / 1000)
local layer_ms, layers = state[2], state[3]
local gone = math.floor(now_ms / layer_ms) - layers
local since = (gone + 1) * layer_ms
local reply = { 'OK' }
for k = 2, #KEYS, 2 do
  local fields, views = redis.call('HGETALL', KEYS[k]), 0
  for i = 1, #fields, 2 do
    -- foreign fields, and layers that left the window, do not count
    local is_in = (tonumber(fields[i]) or gone) > gone
    if is_in then views = views + (tonumber(fields[i + 1]) or 0) end
  end
  reply[k] = views
  reply[k + 1] = redis.call('ZCOUNT', KEYS[k + 1], '-inf', -since)
end
return reply
