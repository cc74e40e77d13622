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
-- CALLER  Partition::touch in src/scripts/partition/activity.rs
-- VECTORS lua/vectors/activity_touch.json

local call, pcall, type, tonumber = redis.call, redis.pcall, type, tonumber
local KEYS, ARGV = KEYS, ARGV
local calls, buffer, meta = KEYS[1], KEYS[3], KEYS[4]
local own_kind, caller, n, epoch = 'activity', ARGV[1], ARGV[2], ARGV[3]
local test_ms, stripes, place_count = ARGV[4], ARGV[5], tonumber(ARGV[6]) or 0

-- check the arguments of each place, and name them and its keys
local places, key, arg = {}, 5, 7
local fits = place_count > 0 and #KEYS == 4 + 2 * place_count and #ARGV <= 1006 + 3 * place_count
for i = 1, fits and place_count or 0 do
  local page, views, visitor_count = ARGV[arg], ARGV[arg + 1], tonumber(ARGV[arg + 2]) or 0
  fits = fits and visitor_count >= 1 and page ~= '' and #page <= 200
    and (views == '1' or #views <= 15 and views:find('^[1-9]%d*$'))
  local next_place = arg + 3 + visitor_count
  places[i] = {
    page = page,
    views = views,
    first_visitor = arg + 3,
    last_visitor = next_place - 1,
    views_key = KEYS[key],
    visitors_key = KEYS[key + 1],
  }
  key, arg = key + 2, next_place
end
if not fits or #places ~= place_count or arg ~= #ARGV + 1 then
  return redis.error_reply('BADARG expected for each place 2 keys, page, views, count and '
    .. 'visitors, 1000 visitors in all at most')
end
local state = call('HMGET', calls, '=now', '=kind', caller,
  '=stripes', '=layer', '=layers', '=keep_minutes', '=max_pending')
-- the fence, word for word the same in each counting script: a repeated call does not count again
local is_number = n:find('^[1-9]%d*$') and (#n < 16 or #n == 16 and n <= '9007199254740992')
if caller ~= '' and (caller:byte() == 61 or not is_number) then
  return redis.error_reply('BADARG expected n of 1 to 2^53, and a caller without = in front')
end
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

local family_stripes, layer_ms, layers = state[4], tonumber(state[5]), tonumber(state[6])
local keeps_minutes, max_pending = state[7] == '1', tonumber(state[8]) or 1000000
if family_stripes ~= stripes then return { 'MISMATCH' } end

-- find the current layer and minute
local time = test_ms ~= '' and { '0', test_ms .. '000' } or call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local layer, minute_s = math.floor(now_ms / layer_ms), math.floor(now_ms / 60000) * 60
local layer_field = ('%.0f'):format(layer)
-- A score is a time below 0. So the visitor of this call gets the lowest score of all, and Redis
-- inserts it in front, where that costs least.
local now_score, minute_score = ('%.0f'):format(0 - now_ms), -1000 * minute_s

-- Find the window, which is the last `layers` layers. Layers up to `gone` have left it, and so have
-- visitors that were seen last before `since_ms`. Its keys live for `ttl_ms`.
local first_layer = layer - layers + 1
local since_ms, ttl_ms, gone = first_layer * layer_ms, layer_ms, first_layer
gone = gone - 1 -- guard: Trim, the layer before the window's first
ttl_ms = ttl_ms + layers * layer_ms -- guard: Expiry
-- Where minutes are kept, the visitors of a minute stay until it is over, also in a shorter window:
-- a visitor that was removed would count as another one.
if keeps_minutes then
  since_ms = math.min(since_ms, minute_s * 1000)
  ttl_ms = math.max(ttl_ms, 60000 + layer_ms)
end

-- decide which places are refused, before anything is counted
local held = keeps_minutes and call('HLEN', buffer) or 0
local hits = keeps_minutes and tonumber(call('HGET', meta, 'hits')) or 0
local pending, is_pending, refused = held, {}, {}
for i, place in ipairs(keeps_minutes and places or {}) do
  local suffix = '/' .. minute_s .. '/' .. place.page
  local ids, new_ids = { 'views' .. suffix, 'visitors' .. suffix }, 0
  for j, count in ipairs(call('HMGET', buffer, unpack(ids))) do
    if not count and not is_pending[ids[j]] then new_ids = new_ids + 1 end
    if count and (#count > 16 or count:find('%D')) then place.refusal = 'RANGE' end
  end
  if new_ids > 0 and pending + new_ids > max_pending then place.refusal = 'FULL' end
  place.views_id, place.visitors_id = ids[1], ids[2]
  if place.refusal then
    refused[#refused + 1] = i .. ':' .. place.refusal
  else
    -- the page's other stripes in this call count under the same ids
    is_pending[ids[1]], is_pending[ids[2]] = true, true
    pending = pending + new_ids
  end
end

-- Count the views. The first write is a plain call: if Redis refuses it, as it does where memory is
-- full, the script ends there, and nothing was done. A later write may fail as well, for instance
-- because a key has another type. So its error is caught, and what was counted is taken back.
local counted, failure = {}, nil
for i = 1, place_count do
  local place = places[i]
  local try_call = counted[1] and pcall or call
  local sum = not place.refusal and try_call('HINCRBY', place.views_key, layer_field, place.views)
  if type(sum) == 'table' then
    failure = sum
    break
  end
  if sum then
    counted[#counted + 1] = place
    local views = place.views == '1' and 1 or tonumber(place.views)
    if sum == views then place.opens_layer = true end
    -- visitors that left are removed when a layer opens, and after every 64 views
    if place.opens_layer or sum % 64 < views then place.trims = true end
    local present = pcall('ZCARD', place.visitors_key)
    if type(present) == 'table' then
      failure = present
      break
    end
  end
end
if failure then
  for _, place in ipairs(counted) do
    local left = call('HINCRBY', place.views_key, layer_field, '-' .. place.views)
    if left == 0 then call('HDEL', place.views_key, layer_field) end
  end
  return failure
end

-- note the call, and the places that it refused
if caller ~= '' then
  local record = refused[1] and n .. ' ' .. table.concat(refused, ' ') or n
  call('HSET', calls, caller, record)
end

-- note the visitors of each place, and remove what has left the window
local kept_views, scored = 0, {}
for number = 1, #counted do
  local place = counted[number]
  local views_key, visitors_key = place.views_key, place.visitors_key
  local before = keeps_minutes and call('ZCOUNT', visitors_key, '-inf', minute_score)
  -- one table for all places: unpack reads only as much of it as this place wrote
  local length = 0
  for i = place.first_visitor, place.last_visitor do
    scored[length + 1], scored[length + 2] = now_score, ARGV[i]
    length = length + 2
  end
  -- LT only lowers a score: after the clock stepped back, a visitor keeps its later time.
  call('ZADD', visitors_key, 'LT', unpack(scored, 1, length))
  if keeps_minutes then
    kept_views = kept_views + place.views
    call('HINCRBY', buffer, place.views_id, place.views)
    local new = call('ZCOUNT', visitors_key, '-inf', minute_score) - before
    if new > 0 then call('HINCRBY', buffer, place.visitors_id, ('%.0f'):format(new)) end
  end
  if place.opens_layer then
    local fields = call('HKEYS', views_key)
    for _, field in ipairs(fields) do
      if (tonumber(field) or layer) <= gone then call('HDEL', views_key, field) end
    end
    if #fields == 64 then -- lua/README.md, "Small hashes"
      call('HSET', views_key, '', (' '):rep(256))
      call('HDEL', views_key, '')
    end
    for _, name in ipairs({ views_key, visitors_key }) do
      if call('PTTL', name) < ttl_ms then call('PEXPIRE', name, ('%.0f'):format(ttl_ms)) end
    end
  end
  local left = place.trims and call('ZCOUNT', visitors_key, 1 - since_ms, '+inf') or 0
  -- Thousands may have left at once. So a call removes a few hundred of them, and does not block
  -- Redis; `length` is two for each visitor of this call, so more are removed than are added.
  if left > 0 then
    call('ZREMRANGEBYRANK', visitors_key, -math.min(left, 200 + length), -1)
  end
end

-- note the hits of what is kept, and how many places were refused
local total = 0
if kept_views > 0 then
  total = call('HINCRBY', meta, 'hits', ('%.0f'):format(kept_views))
  if hits == 0 then
    call('HSET', meta, 'first_at', ('%.0f'):format(now_ms))
    -- a partition that was never configured has no incarnation
    local incarnation = redis.sha1hex(meta .. caller .. n .. time[1] .. time[2]):sub(1, 16)
    call('HSETNX', meta, 'incarnation', incarnation) -- guard: Incarnation
  end
end
if refused[1] then call('HINCRBY', meta, 'refused', #refused) end
if held < 64 and pending >= 64 then -- lua/README.md, "Small hashes"
  call('HSET', buffer, '', (' '):rep(256))
  call('HDEL', buffer, '')
end

local reply = { 'OK', total }
for i = 1, place_count do reply[i + 2] = places[i].refusal or 1 end
return reply
