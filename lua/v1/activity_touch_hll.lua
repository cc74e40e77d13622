-- activity_touch_hll, revision 1
-- Counts views of pages and notes who was there, in HyperLogLogs: little memory, a small error.
--
-- KEYS
--   1 calls         hash      of the caller's home partition: caller -> "N", its last call
--   2 calls_before  hash      the same of the epoch before
--   3 open          hash      kept id -> count of a minute that is not over
--   4 schedule      zset      kept id -> ms: when its minute is over; every id in open is on it
--   5 views:STRIPE:PAGE...     hash  layer -> views in it
--   6 layer:LAYER:STRIPE:PAGE...    hll   visitors of the layer
--   7 minute:MINUTE:STRIPE:PAGE...  hll   visitors of the minute, with keep; then the next place
-- ARGV
--   1 caller        string    random, no "=" in front; one call in flight; "" gives up the fence
--   2 n             integer   number of the call, higher than the caller's last, 1 to 2^53
--   3 epoch         string    as family_epoch returned it
--   4 now_ms        integer   "" for the server's clock; anything else is for tests
--   5 layer_ms      integer   of a layer, 1 to 3600000; its number is floor(now / layer_ms)
--   6 layers        integer   of the window, the current one included, 1 to 1000
--   7 keep          flag      1: minutes are kept as views/MINUTE/PAGE and visitors/MINUTE/PAGE, by
--                             start in Unix seconds; layer_ms divides 60000 then; 0: window only
--   8 layer         integer   the current layer as the caller believes, and as the keys say
--   9 places        integer   how many places follow; a place is one stripe of one page
--   10 page, views, count, visitor...  places  page: 1 to 200 bytes; views: 1 or more; count: of
--                             its visitors, 1 or more; visitor: any bytes; 1000 in all at most
-- REPLIES
--   {"OK"}  counted
--   {"DUP"}  this call was executed before, nothing done now
--   {"PASSED"}  the caller made a later call: nothing done now, the outcome is unknown
--   {"EXPIRED"}  unknown epoch: nothing done now, the outcome of earlier arrivals is unknown
--   {"OUTSIDE", now_ms}  the layer is another one at this time, a string; nothing done: call with
--                        its keys
-- ERRORS
--   BADARG  the arguments do not fit the keys, or an id is too long; nothing done
--   BADSTATE  open holds a value that is not a count; nothing done
-- REPEAT  safe with a caller, from any process
-- SINCE   0.1.0

local call, pcall, KEYS, ARGV = redis.call, redis.pcall, KEYS, ARGV
local own_kind, caller, n, epoch = 'activity', ARGV[1], ARGV[2], ARGV[3]
local keeps, places = ARGV[7] == '1', tonumber(ARGV[9]) or 0
-- each place has its own number of keys, and its arguments from given[k] on, k being its first key
local each, given, at = keeps and 3 or 2, {}, 10
local count_form = '^[1-9]%d*$'
local fits = places >= 1 and #KEYS == 4 + each * places and #ARGV <= 1009 + 3 * places
  and #ARGV[5] <= 7 and ARGV[5]:find(count_form) and #ARGV[6] <= 4 and ARGV[6]:find(count_form)
for k = 5, fits and #KEYS or 0, each do
  local page, views, count = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2]) or 0
  fits = fits and count >= 1 and page ~= '' and #page <= 200
    and (views == '1' or #views <= 15 and views:find(count_form))
  given[k], at = at, at + 3 + count
end
if not fits or places % 1 ~= 0 or at ~= #ARGV + 1 then
  return redis.error_reply('BADARG expected for each place keys, page, views, count and '
    .. 'visitors, 1000 visitors in all at most')
end
-- the fence, word for word the same in each counting script: a repeated call does not count again
local is_number = n:find('^[1-9]%d*$') and (#n < 16 or #n == 16 and n <= '9007199254740992')
if caller ~= '' and (caller:byte() == 61 or not is_number) then
  return redis.error_reply('BADARG expected n of 1 to 2^53, and a caller without = in front')
end
local state = call('HMGET', KEYS[1], '=now', '=kind', caller, '=max_pending')
local now, kind, last, max_pending = state[1], state[2], state[3], state[4]
if kind and kind ~= own_kind then
  return redis.error_reply('BADARG the family is ' .. kind .. ', not ' .. own_kind)
end
if epoch ~= now then
  local before = call('HGET', KEYS[1], '=before')
  if caller ~= '' and epoch ~= before then return { 'EXPIRED' } end -- guard: AnyEpoch
  last = last or call('HGET', KEYS[2], caller) -- guard: OneMemory
end
local last_n
if last then last_n = tonumber(last) or tonumber(last:match('^%d+')) end -- guard: NoMemory
local ahead = last_n and n - last_n or 1
if ahead < 0 then return { 'PASSED' } end
if ahead == 0 then return { 'DUP' } end

local layer_ms, layers, layer = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[8])
local time = call('TIME')
local now_ms = tonumber(ARGV[4]) or time[1] * 1000 + math.floor(time[2] / 1000)
local outside = math.floor(now_ms / layer_ms) ~= layer and string.format('%.0f', now_ms)
if outside then return { 'OUTSIDE', outside } end -- guard: Outside
local minute = math.floor(layer * layer_ms / 60000) * 60
local gone = layer - layers + 1 -- the window's first layer,
gone = gone - 1 -- guard: Trim, and the one before it
local ttl = layer_ms
ttl = ttl + layers * layer_ms -- guard: Expiry
local kept_views, kept_visitors = {}, {}
for k = 5, keeps and #KEYS or 0, 3 do
  call('PFCOUNT', KEYS[k + 2]) -- as each read here: another type ends the script before it writes
  kept_views[k] = 'views/' .. minute .. '/' .. ARGV[given[k]]
  kept_visitors[k] = 'visitors/' .. minute .. '/' .. ARGV[given[k]]
  for _, count in ipairs(call('HMGET', KEYS[3], kept_views[k], kept_visitors[k])) do
    local is_held = not count or #count <= 16 and not count:find('%D')
    if not is_held then return redis.error_reply('BADSTATE open holds no count') end
  end
end
if keeps then call('ZCARD', KEYS[4]) end

local function take_back(last_key)
  for k = 5, last_key, each do
    local views = KEYS[k]
    if call('HINCRBY', views, ARGV[8], '-' .. ARGV[given[k] + 1]) == 0 then
      call('HDEL', views, ARGV[8])
    end
  end
end
-- what is refused is refused here, all by the first write, or taken back
local opens = {}
for k = 5, #KEYS, each do
  local hits, try_call = ARGV[given[k] + 1], k == 5 and call or pcall
  local sum = try_call('HINCRBY', KEYS[k], ARGV[8], hits)
  if type(sum) == 'table' then
    take_back(k - 1)
    return sum
  end
  opens[k] = sum == tonumber(hits)
  local log = opens[k] and pcall('PFCOUNT', KEYS[k + 1])
  if type(log) == 'table' then
    take_back(k)
    return log
  end
end
if caller ~= '' then call('HSET', KEYS[1], caller, n) end

local function add_kept(id, more)
  if more <= 0 or call('HINCRBY', KEYS[3], id, ('%.0f'):format(more)) ~= more then return end
  call('ZADD', KEYS[4], (minute + 60) * 1000, id)
  if call('HLEN', KEYS[3]) ~= 64 then return end
  call('HSET', KEYS[3], '', (' '):rep(256)) -- lua/README.md, "Small hashes"
  call('HDEL', KEYS[3], '')
end
for k = 5, #KEYS, each do
  local views, log, seen = KEYS[k], KEYS[k + 1], KEYS[k + 2]
  local first = given[k] + 3
  local final = first + ARGV[first - 1] - 1
  call('PFADD', log, unpack(ARGV, first, final))
  if keeps then
    local before = call('PFCOUNT', seen)
    add_kept(kept_views[k], tonumber(ARGV[first - 2]))
    if call('PFADD', seen, unpack(ARGV, first, final)) == 1 then
      call('PEXPIRE', seen, 180000)
      add_kept(kept_visitors[k], call('PFCOUNT', seen) - before)
    end
  end
  if opens[k] then
    local fields = call('HKEYS', views)
    for _, field in ipairs(fields) do
      if (tonumber(field) or layer) <= gone then call('HDEL', views, field) end
    end
    if #fields == 64 then -- likewise
      call('HSET', views, '', (' '):rep(256))
      call('HDEL', views, '')
    end
    for j = k, k + 1 do
      if call('PTTL', KEYS[j]) < ttl then call('PEXPIRE', KEYS[j], ('%.0f'):format(ttl)) end
    end
  end
end
return { 'OK' }
