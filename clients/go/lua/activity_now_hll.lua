-- activity_now_hll, revision 1
-- Returns the views of the window, and about how many distinct visitors it has.
--
-- KEYS
--   1 views:STRIPE:PAGE...        hash  layer -> views in it
--   2 layer:LAYER:STRIPE:PAGE...  hll   visitors of a layer: one key for each layer of the window,
--                                       the oldest first; then the keys of the next place, of 100
--                                       at most
-- ARGV
--   1 now_ms        integer   "" for the server's clock; anything else is for tests
--   2 layer_ms      integer   how long a layer lasts, 1 to 3600000; a layer's number is floor(now /
--                             layer_ms)
--   3 layers        integer   how many layers the window has, the current one included, 1 to 1000
--   4 layer         integer   the layer that the caller believes to be the current one: the last
--                             one of the keys
-- REPLIES
--   {"OK", views, visitors...}  integers, for each place both; 0 without visitors
--   {"OUTSIDE", now_ms}       by this time, a string, the layer is another one: call with its keys
-- ERRORS
--   BADARG                    the arguments do not fit the keys
-- REPEAT  safe: it only reads
-- SINCE   0.1.0

local layers, layer = tonumber(ARGV[3]) or 0, tonumber(ARGV[4])
local each = layers + 1
local places = #KEYS / each
if #ARGV ~= 4 or not layer or layers < 1 or places < 1 or places > 100 or places % 1 ~= 0 then
  return redis.error_reply('BADARG expected now_ms, layer_ms, layers, layer, and keys'
    .. ' of 1 to 100 places')
end
local time = redis.call('TIME')
local now_ms = tonumber(ARGV[1]) or time[1] * 1000 + math.floor(time[2] / 1000)
local outside = { 'OUTSIDE', string.format('%.0f', now_ms) }
if math.floor(now_ms / ARGV[2]) ~= layer then return outside end

local reply, gone = { 'OK' }, layer - layers
for k = 1, #KEYS, each do
  local views, fields = 0, redis.call('HGETALL', KEYS[k])
  for i = 1, #fields, 2 do
    local number, count = tonumber(fields[i]), tonumber(fields[i + 1])
    -- as in activity_now
    if number and number > gone then views = views + (count or 0) end
  end
  reply[#reply + 1] = views
  reply[#reply + 1] = redis.call('PFCOUNT', KEYS[k + 1], unpack(KEYS, k + 2, k + layers))
end
return reply
