-- activity_now, revision 1
-- Returns the views and the distinct visitors of the window.
--
-- KEYS
--   1 views:STRIPE:PAGE...     hash  layer -> views in it
--   2 visitors:STRIPE:PAGE...  zset  visitor -> -ms: when it was seen last, below 0; then both keys
--                                    of the next place, of 100 at most
-- ARGV
--   1 now_ms        integer   "" for the server's clock; anything else is for tests
--   2 layer_ms      integer   how long a layer lasts, 1 to 3600000; a layer's number is floor(now /
--                             layer_ms)
--   3 layers        integer   how many layers the window has, the current one included, 1 to 1000
-- REPLIES
--   {"OK", views, visitors...}  integers, for each place both; 0 without visitors
-- ERRORS
--   BADARG                    the arguments do not fit the keys
-- REPEAT  safe: it only reads
-- SINCE   0.1.0

if #ARGV ~= 3 or #KEYS < 2 or #KEYS > 200 or #KEYS % 2 == 1 then
  return redis.error_reply('BADARG expected now_ms, layer_ms, layers, and 2 keys a place, 1 to 100')
end
local layer_ms, time = tonumber(ARGV[2]), redis.call('TIME')
local now_ms = tonumber(ARGV[1]) or time[1] * 1000 + math.floor(time[2] / 1000)
local gone = math.floor(now_ms / layer_ms) - ARGV[3]
local since = (gone + 1) * layer_ms
local reply = { 'OK' }
for k = 1, #KEYS, 2 do
  local fields, views = redis.call('HGETALL', KEYS[k]), 0
  for i = 1, #fields, 2 do
    -- foreign fields, and layers that left the window, do not count
    local is_in = (tonumber(fields[i]) or gone) > gone
    if is_in then views = views + (tonumber(fields[i + 1]) or 0) end
  end
  reply[k + 1] = views
  reply[k + 2] = redis.call('ZCOUNT', KEYS[k + 1], '-inf', -since)
end
return reply
