-- activity_touch, revision 1
-- Counts views of pages and notes who was there.
--
-- KEYS
--   1 calls         hash      of the caller's home partition: caller -> "N [INDEX:WORD ...]", its
--                             last call and the places refused in it; =now, =before, =layer,
--                             =layers, =keep_minutes, =stripes, =max_pending
--   2 calls_before  hash      the same of the epoch before
--   3 buffer        hash      id -> pending delta
--   4 meta          hash      hits, refused, first_at, incarnation
--   5 views:STRIPE:PAGE...     hash  layer -> views in it
--   6 visitors:STRIPE:PAGE...  zset  visitor -> -ms of the last visit; then the next place's keys
-- ARGV
--   1 caller        string    random, no "=" in front; one call in flight; "" gives up the fence
--   2 n             integer   number of the call, higher than the caller's last, 1 to 2^53
--   3 epoch         string    as family_epoch returned it
--   4 now_ms        integer   "" for the server's clock; anything else is for tests
--   5 stripes       integer   of a page, as family_epoch returned it
--   6 places        integer   how many places follow; a place is one stripe of one page
--   7 page, views, count, visitor...  places  page: 1 to 200 bytes; views: 1 or more; count: of its
--                             visitors, 1 or more; visitor: any bytes; 1000 in all at most
-- REPLIES
--   {"OK", hits, word...}  hits of the partition since the last rotation, 0 where no minutes are
--                    kept; for each place 1, or why it counts nowhere: FULL (the buffer holds
--                    max_pending other ids), RANGE (what is kept of it is not a count)
--   {"DUP", refused}  executed before, nothing done now; "1:FULL ..." are the places refused then
--   {"PASSED"}  the caller made a later call: nothing done now, the outcome is unknown
--   {"EXPIRED"}  unknown epoch: nothing done now, the outcome of earlier arrivals is unknown
--   {"MISMATCH"}  a page has another number of stripes: nothing done now, the outcome of earlier
--                    arrivals is unknown
-- ERRORS
--   BADARG  the arguments do not fit the keys, or an id is too long; nothing done
-- REPEAT  safe with a caller, from any process
-- SINCE   0.1.0

local call, pcall, type, tonumber = redis.call, redis.pcall, type, tonumber
local KEYS, ARGV = KEYS, ARGV
local own_kind, caller, n, epoch = 'activity', ARGV[1], ARGV[2], ARGV[3]
local own_settings = { '=stripes', '=layer', '=layers', '=keep_minutes', '=max_pending' }
local places, starts, count_form = tonumber(ARGV[6]) or 0, { 7 }, '^[1-9]%d*$'
local fits = places > 0 and #KEYS == 4 + 2 * places and #ARGV <= 1006 + 3 * places
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
if ahead == 0 then return { 'DUP', last:match(' (.+)') or '' } end

if state[4] ~= ARGV[5] then return { 'MISMATCH' } end
local layer_ms, layers, keeps = state[5], state[6], state[7] == '1'
local time = ARGV[4] ~= '' and { '0', ARGV[4] .. '000' } or call('TIME')
local buffer, meta, max = KEYS[3], KEYS[4], tonumber(state[8]) or 1000000
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
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
-- what is refused before anything is counted
local kept, words, refused = {}, {}, {}
local held = keeps and call('HLEN', buffer) or 0
local pending, hits = held, keeps and tonumber(call('HGET', meta, 'hits')) or 0
for i = 1, keeps and places or 0 do
  local suffix = '/' .. minute .. '/' .. ARGV[starts[i]]
  local ids, fresh = { 'views' .. suffix, 'visitors' .. suffix }, 0
  for j, count in ipairs(call('HMGET', buffer, unpack(ids))) do
    if not count and not kept[ids[j]] then fresh = fresh + 1 end
    if count and (#count > 16 or count:find('%D')) then words[i] = 'RANGE' end
  end
  if fresh > 0 and pending + fresh > max then words[i] = 'FULL' end
  kept[2 * i - 1], kept[2 * i] = ids[1], ids[2]
  if words[i] then
    refused[#refused + 1] = i .. ':' .. words[i]
  else
    pending = pending + fresh
    kept[ids[1]], kept[ids[2]] = true, true
  end
end

-- all is refused by the first write, or taken back
local opens, trims, failed, changed = {}, {}, nil, {}
for i = 1, places do
  local hits_of, try_call = ARGV[starts[i] + 1], changed[1] and pcall or call
  local sum = not words[i] and try_call('HINCRBY', KEYS[3 + 2 * i], field, hits_of)
  if type(sum) == 'table' then
    failed = sum
    break
  end
  if sum then
    changed[#changed + 1] = i
    local amount = hits_of == '1' and 1 or tonumber(hits_of)
    if sum == amount then opens[i] = true end
    if opens[i] or sum % 64 < amount then trims[i] = true end
    local present = pcall('ZCARD', KEYS[4 + 2 * i])
    if type(present) == 'table' then
      failed = present
      break
    end
  end
end
for _, i in ipairs(failed and changed or {}) do
  local left = call('HINCRBY', KEYS[3 + 2 * i], field, '-' .. ARGV[starts[i] + 1])
  if left == 0 then call('HDEL', KEYS[3 + 2 * i], field) end
end
if failed then return failed end
if caller ~= '' then
  local record = refused[1] and n .. ' ' .. table.concat(refused, ' ') or n
  call('HSET', KEYS[1], caller, record)
end

local line, reply, counted = {}, { 'OK', 0 }, 0
for i = 1, places do reply[i + 2] = words[i] or 1 end
for _, i in ipairs(changed) do
  local visitors, first, count = KEYS[4 + 2 * i], starts[i] + 3, starts[i + 1] - starts[i] - 3
  local before = keeps and call('ZCOUNT', visitors, '-inf', -1000 * minute)
  for v = 1, count do
    line[2 * v - 1], line[2 * v] = seen_at, ARGV[first + v - 1]
  end
  -- with LT a clock that stepped back takes no visitor out
  call('ZADD', visitors, 'LT', unpack(line, 1, 2 * count))
  if keeps then
    counted = counted + ARGV[first - 2]
    call('HINCRBY', buffer, kept[2 * i - 1], ARGV[first - 2])
    local new = call('ZCOUNT', visitors, '-inf', -1000 * minute) - before
    if new > 0 then call('HINCRBY', buffer, kept[2 * i], ('%.0f'):format(new)) end
  end
  if opens[i] then
    local views = KEYS[3 + 2 * i]
    local layers_of = call('HKEYS', views)
    for _, each in ipairs(layers_of) do
      if (tonumber(each) or layer) <= gone then call('HDEL', views, each) end
    end
    if #layers_of == 64 then -- lua/README.md, "Small hashes"
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
if counted > 0 then
  reply[2] = call('HINCRBY', meta, 'hits', ('%.0f'):format(counted))
  if hits == 0 then
    call('HSET', meta, 'first_at', ('%.0f'):format(now_ms))
    -- of a partition that was never configured
    local incarnation = redis.sha1hex(meta .. caller .. n .. time[1] .. time[2]):sub(1, 16)
    call('HSETNX', meta, 'incarnation', incarnation) -- guard: Incarnation
  end
end
if refused[1] then call('HINCRBY', meta, 'refused', #refused) end
if held < 64 and pending >= 64 then -- likewise
  call('HSET', buffer, '', (' '):rep(256))
  call('HDEL', buffer, '')
end
return reply
