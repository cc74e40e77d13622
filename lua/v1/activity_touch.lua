-- activity_touch, revision 1
-- Counts views of pages and notes who was there.
--
-- KEYS
--   1 calls         hash      of the caller's home partition: caller -> "N", its last call
--   2 calls_before  hash      the same of the epoch before
--   3 open          hash      kept id -> count of a minute that is not over
--   4 schedule      zset      kept id -> ms: when its minute is over; every id in open is on it
--   5 views:STRIPE:PAGE...     hash  layer -> views in it
--   6 visitors:STRIPE:PAGE...  zset  visitor -> -ms of the last visit; then the next place's keys
-- ARGV
--   1 caller        string    random, no "=" in front; one call in flight; "" gives up the fence
--   2 n             integer   number of the call, higher than the caller's last, 1 to 2^53
--   3 epoch         string    as family_epoch returned it
--   4 now_ms        integer   "" for the server's clock; anything else is for tests
--   5 layer_ms      integer   of a layer, 1 to 3600000; its number is floor(now / layer_ms)
--   6 layers        integer   of the window, the current one included, 1 to 1000
--   7 keep          flag      1: minutes are kept as views/MINUTE/PAGE and visitors/MINUTE/PAGE, by
--                             start in Unix seconds; layer_ms divides 60000 then; 0: window only
--   8 places        integer   how many places follow; a place is one stripe of one page
--   9 page, views, count, visitor...  places  page: 1 to 200 bytes; views: 1 or more; count: of its
--                             visitors, 1 or more; visitor: any bytes; 1000 in all at most
-- REPLIES
--   {"OK"}  counted
--   {"DUP"}  this call was executed before, nothing done now
--   {"PASSED"}  the caller made a later call: nothing done now, the outcome is unknown
--   {"EXPIRED"}  unknown epoch: nothing done now, the outcome of earlier arrivals is unknown
-- ERRORS
--   BADARG  the arguments do not fit the keys, or an id is too long; nothing done
--   BADSTATE  open holds a value that is not a count; nothing done
-- REPEAT  safe with a caller, from any process
-- SINCE   0.1.0

local call, pcall, type, tonumber = redis.call, redis.pcall, type, tonumber
local KEYS, ARGV = KEYS, ARGV
local own_kind, caller, n, epoch = 'activity', ARGV[1], ARGV[2], ARGV[3]
local own_settings = {}
local keeps, places, starts = ARGV[7] == '1', tonumber(ARGV[8]) or 0, { 9 }
local count_form = '^[1-9]%d*$'
local fits = places > 0 and #KEYS == 4 + 2 * places and #ARGV <= 1008 + 3 * places
  and #ARGV[5] <= 7 and ARGV[5]:find(count_form) and #ARGV[6] <= 4 and ARGV[6]:find(count_form)
for i = 1, fits and places or 0 do
  local at = starts[i]
  local page, views, count = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2]) or 0
  fits = fits and count >= 1 and page ~= '' and #page <= 200
    and (views == '1' or #views <= 15 and views:find(count_form))
  starts[i + 1] = at + 3 + count
end
if not fits or starts[places + 1] ~= #ARGV + 1 then
  return redis.error_reply('BADARG expected for each place 2 keys, page, views, count and '
    .. 'visitors, 1000 visitors in all at most')
end
-- the fence, word for word the same in each counting script: a repeated call does not count again
local is_number = n:find('^[1-9]%d*$') and (#n < 16 or #n == 16 and n <= '9007199254740992')
if caller ~= '' and (caller:byte() == 61 or not is_number) then
  return redis.error_reply('BADARG expected n of 1 to 2^53, and a caller without = in front')
end
local state = call('HMGET', KEYS[1], '=now', '=kind', caller, unpack(own_settings))
local now, kind, last = state[1], state[2], state[3]
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

local layer_ms, layers, time = tonumber(ARGV[5]), tonumber(ARGV[6]), call('TIME')
local now_ms = tonumber(ARGV[4]) or time[1] * 1000 + math.floor(time[2] / 1000)
local layer, minute = math.floor(now_ms / layer_ms), math.floor(now_ms / 60000) * 60
-- times are below 0, so that a visitor is inserted in front of all others, where it is cheapest
local field, seen_at = ('%.0f'):format(layer), ('%.0f'):format(0 - now_ms)
local gone = layer - layers + 1 -- the window's first layer,
local since, ttl = gone * layer_ms, layer_ms
gone = gone - 1 -- guard: Trim, and the one before it
ttl = ttl + layers * layer_ms -- guard: Expiry
if keeps then -- visitors of the minute stay
  since, ttl = math.min(since, minute * 1000), math.max(ttl, 60000 + layer_ms)
end
local kept = {}
for i = 1, keeps and places or 0 do
  local suffix = '/' .. minute .. '/' .. ARGV[starts[i]]
  kept[2 * i - 1], kept[2 * i] = 'views' .. suffix, 'visitors' .. suffix
end
if keeps then call('ZCARD', KEYS[4]) end
for _, count in ipairs(keeps and call('HMGET', KEYS[3], unpack(kept)) or {}) do
  if count and (#count > 16 or count:find('%D')) then
    return redis.error_reply('BADSTATE open holds no count')
  end
end

-- all is refused by the first write, or taken back
local opens, trims, refused, changed = {}, {}, nil, 0
for i = 1, places do
  local hits, try_call = ARGV[starts[i] + 1], i == 1 and call or pcall
  local sum = try_call('HINCRBY', KEYS[3 + 2 * i], field, hits)
  if type(sum) == 'table' then
    refused = sum
    break
  end
  changed = i
  local amount = hits == '1' and 1 or tonumber(hits)
  if sum == amount then opens[i] = true end
  if opens[i] or sum % 64 < amount then trims[i] = true end
  local present = pcall('ZCARD', KEYS[4 + 2 * i])
  if type(present) == 'table' then
    refused = present
    break
  end
end
for i = 1, refused and changed or 0 do
  local left = call('HINCRBY', KEYS[3 + 2 * i], field, '-' .. ARGV[starts[i] + 1])
  if left == 0 then call('HDEL', KEYS[3 + 2 * i], field) end
end
if refused then return refused end
if caller ~= '' then call('HSET', KEYS[1], caller, n) end

local count_kept = keeps and function(id, more)
  local sum = more > 0 and call('HINCRBY', KEYS[3], id, ('%.0f'):format(more))
  if sum ~= more then return end
  call('ZADD', KEYS[4], (minute + 60) * 1000, id)
  if call('HLEN', KEYS[3]) == 64 then -- lua/README.md, "Small hashes"
    call('HSET', KEYS[3], '', (' '):rep(256))
    call('HDEL', KEYS[3], '')
  end
end
local line = {}
for i = 1, places do
  local visitors, first, count = KEYS[4 + 2 * i], starts[i] + 3, starts[i + 1] - starts[i] - 3
  local before = keeps and call('ZCOUNT', visitors, '-inf', -1000 * minute)
  for v = 1, count do
    line[2 * v - 1], line[2 * v] = seen_at, ARGV[first + v - 1]
  end
  -- with LT a clock that stepped back takes no visitor out
  call('ZADD', visitors, 'LT', unpack(line, 1, 2 * count))
  if keeps then
    count_kept(kept[2 * i - 1], tonumber(ARGV[first - 2]))
    count_kept(kept[2 * i], call('ZCOUNT', visitors, '-inf', -1000 * minute) - before)
  end
  if opens[i] then
    local views = KEYS[3 + 2 * i]
    local layers_of = call('HKEYS', views)
    for _, each in ipairs(layers_of) do
      if (tonumber(each) or layer) <= gone then call('HDEL', views, each) end
    end
    if #layers_of == 64 then -- likewise
      call('HSET', views, '', (' '):rep(256))
      call('HDEL', views, '')
    end
    for key = 3 + 2 * i, 4 + 2 * i do
      if call('PTTL', KEYS[key]) < ttl then call('PEXPIRE', KEYS[key], ('%.0f'):format(ttl)) end
    end
  end
  local left = trims[i] and call('ZCOUNT', visitors, 1 - since, '+inf') or 0
  if left > 0 then -- not all at once
    call('ZREMRANGEBYRANK', visitors, -math.min(left, 200 + 2 * count), -1)
  end
end
return { 'OK' }
