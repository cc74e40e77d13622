-- activity_touch, revision 1
-- Counts views of pages and notes who was there.
--
-- KEYS
--   1 calls                    hash  of the caller's home partition: caller -> "N", its last call; =now, =before
--   2 calls_before             hash  the same of the epoch before
--   3 open                     hash  kept id -> count of a minute that is not over yet
--   4 schedule                 zset  kept id -> ms: when its minute is over; every id in open is on it
--   5 views:STRIPE:PAGE...     hash  layer -> views in it
--   6 visitors:STRIPE:PAGE...  zset  visitor -> -ms: when it was seen last, below 0; then both keys of the next place
-- ARGV
--   1 caller        string    random, not beginning with "="; it has one call in flight; "" gives up the fence
--   2 n             integer   number of the call, higher than the caller's last, 1 to 2^53
--   3 epoch         string    as family_epoch told it
--   4 now_ms        integer   "" for the server's clock; anything else is for tests
--   5 layer_ms      integer   how long a layer lasts, 1 to 3600000; a layer's number is floor(now / layer_ms)
--   6 layers        integer   how many layers the window has, the current one included, 1 to 1000
--   7 keep          flag      1: minutes are kept in the database, as views/MINUTE/PAGE and visitors/MINUTE/PAGE by
--                             their start in Unix seconds; layer_ms divides 60000 then; 0: only the window counts
--   8 places        integer   how many places follow; a place is one stripe of one page
--   9 page, views, count, visitor...  places  page: 1 to 200 bytes; views: 1 or more; count: of the visitors that
--                             follow, 1 or more; visitor: bytes of any kind; 1000 visitors in all at most
-- REPLIES
--   {"OK"}                    counted
--   {"DUP"}                   this call was executed before, nothing done now
--   {"PASSED"}                the caller has made a later call: nothing done now, and not known what was done before
--   {"EXPIRED"}               the epoch is not known (any more): nothing done now, and not known what was done before
-- ERRORS
--   BADARG                    the arguments do not fit the keys, or an id is too long; nothing done
--   BADSTATE                  open holds a value that is not a count; nothing done
-- REPEAT  safe with a caller, from any process
-- SINCE   0.1.0

local call, pcall, type, KEYS, ARGV = redis.call, redis.pcall, type, KEYS, ARGV
local own_kind, caller, n, epoch, places = 'activity', ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[8]) or 0
local keep = ARGV[7] == '1'
local fit, starts = places > 0 and #KEYS == 4 + 2 * places and #ARGV <= 1008 + 3 * places, { 9 }
for i = 1, fit and places or 0 do
  local page, count = ARGV[starts[i]], ARGV[starts[i] + 2]
  count = count == '1' and 1 or tonumber(count) or 0
  fit, starts[i + 1] = fit and count >= 1 and page ~= '' and #page <= 200, starts[i] + 3 + count
end
fit = fit and starts[places + 1] == #ARGV + 1
if not fit then return redis.error_reply('BADARG expected for each place two keys, page, views, count and visitors') end
-- the fence, word for word the same in each counting script: a call counts once, however often it arrives
local is_number = n:find('^[1-9]%d*$') and (#n < 16 or #n == 16 and n <= '9007199254740992')
if caller ~= '' and (caller:byte() == 61 or not is_number) then
  return redis.error_reply('BADARG expected n of 1 to 2^53, and a caller that does not begin with =')
end
local now, kind, last, max_pending = unpack(redis.call('HMGET', KEYS[1], '=now', '=kind', caller, '=max_pending'))
if kind and kind ~= own_kind then return redis.error_reply('BADARG the family is ' .. kind .. ', not ' .. own_kind) end
if caller ~= '' and epoch ~= now and epoch ~= redis.call('HGET', KEYS[1], '=before') then return { 'EXPIRED' } end
last = last or epoch ~= now and redis.call('HGET', KEYS[2], caller)
local last_n = last and (tonumber(last) or tonumber(last:match('^%d+')))
if last_n and n - last_n < 0 then return { 'PASSED' } end
if last_n and n - last_n == 0 then return { 'DUP' } end
local time, layer_ms, layers = ARGV[4] == '' and call('TIME'), tonumber(ARGV[5]), tonumber(ARGV[6])
local now_ms = time and time[1] * 1000 + math.floor(time[2] / 1000) or tonumber(ARGV[4])
local layer, minute, kept, looks, line = math.floor(now_ms / layer_ms), math.floor(now_ms / 60000) * 60, {}, {}, {}
local gone, since, ttl = layer - layers, (layer - layers + 1) * layer_ms, (layers + 1) * layer_ms
-- times are below 0, so that a visitor is inserted in front of all others, where it costs Redis least
local name, seen_at, of = ('%.0f'):format(layer), ('%.0f'):format(0 - now_ms), keep and '/' .. minute .. '/'
if keep then since, ttl = math.min(since, minute * 1000), math.max(ttl, 60000 + layer_ms) end -- nobody of it leaves
for i = 1, keep and 2 * places or 0 do
  kept[i] = (i % 2 == 1 and 'views' or 'visitors') .. of .. ARGV[starts[math.ceil(i / 2)]]
end
for _, count in ipairs(keep and call('ZCARD', KEYS[4]) and call('HMGET', KEYS[3], unpack(kept)) or {}) do
  if count and (#count > 16 or count:find('%D')) then return redis.error_reply('BADSTATE open holds no count') end
end
-- what is refused is refused here, and taken back; looks: a number where a place's layer begins, true now and then
for i = 1, places do
  local views, try_call = ARGV[starts[i] + 1], i == 1 and call or pcall -- the first write is refused for all
  local sum, hits = try_call('HINCRBY', KEYS[3 + 2 * i], name, views), views == '1' and 1 or tonumber(views)
  local look = type(sum) == 'table' and sum or sum == hits and pcall('ZCARD', KEYS[4 + 2 * i]) or sum % 64 < hits
  if look then
    for j = 1, type(look) ~= 'table' and 0 or look == sum and i - 1 or i do
      local left = call('HINCRBY', KEYS[3 + 2 * j], name, '-' .. ARGV[starts[j] + 1])
      if left == 0 then call('HDEL', KEYS[3 + 2 * j], name) end
    end
    if type(look) == 'table' then return look end
    looks[i] = look
  end
end
if caller ~= '' then redis.call('HSET', KEYS[1], caller, n) end
for i = 1, places do
  local visitors, from, count, look = KEYS[4 + 2 * i], starts[i] + 2, starts[i + 1] - starts[i] - 3, looks[i]
  local seen = keep and call('ZCOUNT', visitors, '-inf', -1000 * minute)
  for v = 1, count do line[2 * v - 1], line[2 * v] = seen_at, ARGV[from + v] end
  call('ZADD', visitors, 'LT', unpack(line, 1, 2 * count)) -- with LT a clock that stepped back takes nobody out
  for k = 1, keep and 2 or 0 do
    local more = k == 1 and tonumber(ARGV[from - 1]) or call('ZCOUNT', visitors, '-inf', -1000 * minute) - seen
    local sum = more > 0 and call('HINCRBY', KEYS[3], kept[2 * i - 2 + k], more)
    if sum == more then
      call('ZADD', KEYS[4], (minute + 60) * 1000, kept[2 * i - 2 + k])
      local longer = call('HLEN', KEYS[3]) == 64 and (' '):rep(256) -- a table, as in buffered_add
      if longer and call('HSET', KEYS[3], longer, '0') then call('HDEL', KEYS[3], longer) end
    end
  end
  if look and look ~= true then
    local views, fields = KEYS[3 + 2 * i], call('HKEYS', KEYS[3 + 2 * i])
    for _, field in ipairs(fields) do if (tonumber(field) or layer) <= gone then call('HDEL', views, field) end end
    if #fields == 64 and call('HSET', views, (' '):rep(256), '0') then call('HDEL', views, (' '):rep(256)) end
    for k = 3 + 2 * i, 4 + 2 * i do if call('PTTL', KEYS[k]) < ttl then call('PEXPIRE', KEYS[k], ttl) end end
  end
  local left = look and call('ZCOUNT', visitors, 1 - since, '+inf') or 0
  if left > 0 then call('ZREMRANGEBYRANK', visitors, -math.min(left, 200 + 2 * count), -1) end -- not all at once
end
return { 'OK' }
