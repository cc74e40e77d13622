-- activity_touch_hll, revision 1
-- Counts views of pages and notes who was there, in HyperLogLogs, which take little memory and err a little.
--
-- KEYS
--   1 calls                         hash  of the caller's home partition: caller -> "N", its last call; =now, =before
--   2 calls_before                  hash  the same of the epoch before
--   3 open                          hash  kept id -> count of a minute that is not over yet
--   4 schedule                      zset  kept id -> ms: when its minute is over; every id in open is on it
--   5 views:STRIPE:PAGE...          hash  layer -> views in it
--   6 layer:LAYER:STRIPE:PAGE...    hll   visitors of the layer
--   7 minute:MINUTE:STRIPE:PAGE...  hll   visitors of its minute, only where keep is 1; then the keys of the next place
-- ARGV
--   1 caller        string    random, not beginning with "="; it has one call in flight; "" gives up the fence
--   2 n             integer   number of the call, higher than the caller's last, 1 to 2^53
--   3 epoch         string    as family_epoch told it
--   4 now_ms        integer   "" for the server's clock; anything else is for tests
--   5 layer_ms      integer   how long a layer lasts, 1 to 3600000; a layer's number is floor(now / layer_ms)
--   6 layers        integer   how many layers the window has, the current one included, 1 to 1000
--   7 keep          flag      1: minutes are kept in the database, as views/MINUTE/PAGE and visitors/MINUTE/PAGE by
--                             their start in Unix seconds; layer_ms divides 60000 then; 0: only the window counts
--   8 layer         integer   the layer that the caller believes to be the current one: the one of the keys
--   9 places        integer   how many places follow; a place is one stripe of one page
--   10 page, views, count, visitor...  places  page: 1 to 200 bytes; views: 1 or more; count: of the visitors that
--                             follow, 1 or more; visitor: bytes of any kind; 1000 visitors in all at most
-- REPLIES
--   {"OK"}                    counted
--   {"DUP"}                   this call was executed before, nothing done now
--   {"PASSED"}                the caller has made a later call: nothing done now, and not known what was done before
--   {"EXPIRED"}               the epoch is not known (any more): nothing done now, and not known what was done before
--   {"OUTSIDE", now_ms}       by this time, a string, the layer is another one; nothing done: call with its keys
-- ERRORS
--   BADARG                    the arguments do not fit the keys, or an id is too long; nothing done
--   BADSTATE                  open holds a value that is not a count; nothing done
-- REPEAT  safe with a caller, from any process
-- SINCE   0.1.0

local own_kind, caller, n, epoch, places = 'activity', ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[9]) or 0
local keep = ARGV[7] == '1'
local call, pcall, each, at, given, kept, opened = redis.call, redis.pcall, keep and 3 or 2, 10, {}, {}, {}
local fit = places >= 1 and places % 1 == 0 and #KEYS == 4 + each * places and #ARGV <= 1009 + 3 * places
for k = 5, fit and #KEYS or 0, each do
  local count = tonumber(ARGV[at + 2]) or 0
  fit, given[k], at = fit and count >= 1 and ARGV[at] ~= '' and #ARGV[at] <= 200, at, at + 3 + count
end
fit = fit and at == #ARGV + 1
if not fit then return redis.error_reply('BADARG expected for each place its keys, page, views, count and visitors') end
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
local layer_ms, layers, layer, time = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[8]), call('TIME')
local now_ms = tonumber(ARGV[4]) or time[1] * 1000 + math.floor(time[2] / 1000)
if math.floor(now_ms / layer_ms) ~= layer then return { 'OUTSIDE', string.format('%.0f', now_ms) } end
local ttl, gone, minute = (layers + 1) * layer_ms, layer - layers, math.floor(layer * layer_ms / 60000) * 60
for k = 5, keep and #KEYS or 0, 3 do
  call('PFCOUNT', KEYS[k + 2]) -- as each read here: another type ends the script, and nothing is written
  kept[k], kept[k + 1] = 'views/' .. minute .. '/' .. ARGV[given[k]], 'visitors/' .. minute .. '/' .. ARGV[given[k]]
  for _, count in ipairs(call('HMGET', KEYS[3], kept[k], kept[k + 1])) do
    if count and (#count > 16 or count:find('%D')) then return redis.error_reply('BADSTATE open holds no count') end
  end
end
if keep then call('ZCARD', KEYS[4]) end
-- what is refused is refused here, all by the first write or taken back; a log is looked at when its layer begins
for k = 5, #KEYS, each do
  local views, try_call = ARGV[given[k] + 1], k == 5 and call or pcall
  local sum = try_call('HINCRBY', KEYS[k], ARGV[8], views)
  opened[k] = type(sum) == 'table' and sum or sum == tonumber(views) and pcall('PFCOUNT', KEYS[k + 1])
  if type(opened[k]) == 'table' then
    for j = 5, opened[k] == sum and k - 1 or k, each do
      if call('HINCRBY', KEYS[j], ARGV[8], '-' .. ARGV[given[j] + 1]) == 0 then call('HDEL', KEYS[j], ARGV[8]) end
    end
    return opened[k]
  end
end
if caller ~= '' then redis.call('HSET', KEYS[1], caller, n) end
local function count_kept(id, more)
  if more <= 0 or call('HINCRBY', KEYS[3], id, more) ~= more then return end
  call('ZADD', KEYS[4], (minute + 60) * 1000, id)
  local longer = call('HLEN', KEYS[3]) == 64 and (' '):rep(256) -- a table, as in buffered_add
  if longer and call('HSET', KEYS[3], longer, '0') then call('HDEL', KEYS[3], longer) end
end
for k = 5, #KEYS, each do
  local from, to = given[k] + 3, given[k] + 2 + ARGV[given[k] + 2]
  call('PFADD', KEYS[k + 1], unpack(ARGV, from, to))
  if keep then
    local seen = call('PFCOUNT', KEYS[k + 2])
    count_kept(kept[k], tonumber(ARGV[from - 2]))
    if call('PFADD', KEYS[k + 2], unpack(ARGV, from, to)) == 1 then
      call('PEXPIRE', KEYS[k + 2], 180000)
      count_kept(kept[k + 1], call('PFCOUNT', KEYS[k + 2]) - seen)
    end
  end
  if opened[k] then
    local fields = call('HKEYS', KEYS[k])
    for _, field in ipairs(fields) do if (tonumber(field) or layer) <= gone then call('HDEL', KEYS[k], field) end end
    if #fields == 64 and call('HSET', KEYS[k], (' '):rep(256), '0') then call('HDEL', KEYS[k], (' '):rep(256)) end
    for j = k, k + 1 do if call('PTTL', KEYS[j]) < ttl then call('PEXPIRE', KEYS[j], ttl) end end
  end
end
return { 'OK' }
