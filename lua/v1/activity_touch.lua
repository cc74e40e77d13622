-- activity_touch, revision 1
-- Counts views of pages and notes who was there.
--
-- KEYS
--   1 producers                hash   producer -> "SEQ AT_MS [INDEX:WORD ...]": its last call
--   2 open                     hash   kept id -> count of a minute that is not over yet
--   3 agenda                   zset   kept id -> ms: when its minute is over; every id in open is on it
--   4 views:STRIPE:PAGE...     hash   layer -> views in it
--   5 visitors:STRIPE:PAGE...  zset   visitor -> ms: when it was seen last; then both keys of the next place
-- ARGV
--   1 producer      string    name of a registered writer, [0-9A-Za-z_-]{1,64}; "" gives up the fence against repeats
--   2 seq           integer   number of the call, higher than the producer's last; 0 without a producer
--   3 attempt       word      "first", or "repeat" when an earlier send of this call may have been executed
--   4 now_ms        integer   "" for the server's clock; anything else is for tests
--   5 layer_ms      integer   how long a layer lasts, 1 to 3600000; a layer's number is floor(now / layer_ms)
--   6 layers        integer   how many layers the window has, the current one included, 1 to 1000
--   7 keep          flag      1: what a minute had is kept in the database, as views/MINUTE/PAGE and
--                             visitors/MINUTE/PAGE, MINUTE being its start in Unix seconds; layer_ms divides 60000
--                             then; 0: only the window counts
--   8 places        integer   how many places follow, 1 to 1000; a place is one stripe of one page
--   9 page, views, count, visitor...  places  page: 1 to 200 bytes of UTF-8, the one of the place's keys; views: of
--                             all its visitors, 1 or more; count: of the visitors that follow, 1 or more;
--                             visitor: 1 to 255 bytes of any kind
-- REPLIES
--   {"OK"}                    counted
--   {"DUP"}                   this call was executed before, nothing done now
--   {"UNKNOWN"}               a repeat from a producer that is not known: Redis lost its memory; nothing done
-- ERRORS
--   BADARG                    an argument is missing or wrong; nothing done
--   BADKEY                    a key is misspelt or holds another type; nothing done
--   BADSTATE                  a count is none: somebody wrote there; nothing done
-- REPEAT  safe with a producer and the same seq, attempt "repeat"; counts again without a producer
-- SINCE   0.1.0

-- what an error quotes is short and ASCII: some clients end the connection over other bytes
local function shown(text) return (text:sub(1, 200):gsub('[^ -~]', '?')) end

-- what every key begins with, as the first one has it; nothing where that is misspelt
local function tag_of_keys()
  local tag, namespace, family, number = KEYS[1]:match('^(cf1:{([a-z0-9_.%-]+)/([a-z0-9_.%-]+)/(%d+)}:)')
  return tag and #namespace <= 64 and #family <= 64 and (number == '0' or number:byte() ~= 48) and tag
end

local function misspelt(i, kind)
  return redis.error_reply('BADKEY ' .. i .. ' of ' .. #KEYS .. ' is ' .. shown(KEYS[i]) .. ', expected '
    .. 'cf1:{NAMESPACE/FAMILY/PARTITION}:' .. shown(kind) .. ' with names of [a-z0-9_.-]{1,64}')
end

local function bad_count(name, text)
  if (text ~= '0' and not text:find('^[1-9]%d*$')) or #text > 15 then
    return redis.error_reply('BADARG ' .. name .. ' is ' .. shown(text) .. ', expected an integer of up to 15 digits')
  end
end

local function bad_number(name, text, least, most)
  local wrong = bad_count(name, text)
  if wrong then return wrong end
  if tonumber(text) < least or tonumber(text) > most then
    return redis.error_reply('BADARG ' .. name .. ' is ' .. text .. ', expected ' .. least .. ' to ' .. most)
  end
end

local function ask(command, key, ...)
  local reply = redis.pcall(command, key, ...)
  if type(reply) == 'table' and reply.err then
    return nil, redis.error_reply('BADKEY ' .. key .. ' cannot be read: ' .. reply.err)
  end
  return reply
end

-- every well-formed sequence becomes one ASCII letter, so that its neighbours cannot join to a new one
local function is_utf8(text)
  for _, sequence in ipairs({ '[\194-\223][\128-\191]', '\224[\160-\191][\128-\191]',
    '[\225-\236\238\239][\128-\191][\128-\191]', '\237[\128-\159][\128-\191]', '\240[\144-\191][\128-\191][\128-\191]',
    '[\241-\243][\128-\191][\128-\191][\128-\191]', '\244[\128-\143][\128-\191][\128-\191]' }) do
    text = text:gsub(sequence, 'a')
  end
  return not text:find('[\128-\255]')
end

local function bad_page(page)
  if page == '' or #page > 200 then return 'page has ' .. #page .. ' bytes, expected 1 to 200' end
  if page:find('[\128-\255]') and not is_utf8(page) then return 'page is not UTF-8' end
end

local function bad_visitors(from, to)
  for i = from, to do
    local bytes = #ARGV[i]
    if bytes < 1 or bytes > 255 then
      return 'visitor ' .. i - from + 1 .. ' has ' .. bytes .. ' bytes, expected 1 to 255'
    end
  end
end

-- what HINCRBY cannot add to; up to 16 digits leave room for whatever a call may add
local function bad_count_of(key, count)
  if count and (#count > 16 or not count:find('^%d+$')) then
    return redis.error_reply('BADSTATE ' .. shown(key) .. ' holds no count, but ' .. shown(count))
  end
end

local function bad_counts(key, counts)
  for i = 1, #counts do
    local wrong = bad_count_of(key, counts[i])
    if wrong then return wrong end
  end
end

-- Lua passes on only so many arguments at once
local function part(list, from) return unpack(list, from, math.min(from + 999, #list)) end

local function ask_all(key, ids)
  local found, wrong = ask('HMGET', key, part(ids, 1))
  for from = 1001, wrong and 0 or #ids, 1000 do
    for i, answer in ipairs(redis.call('HMGET', key, part(ids, from))) do found[from + i - 1] = answer end
  end
  return found, wrong
end

if #ARGV < 12 then
  return redis.error_reply('BADARG ' .. #ARGV .. ' arguments, expected 8 and then places')
end
local producers, open, agenda = KEYS[1], KEYS[2], KEYS[3]
local producer, attempt, keep = ARGV[1], ARGV[3], ARGV[7] == '1'
if #producer > 64 or producer:find('[^0-9A-Za-z_-]') then
  return redis.error_reply('BADARG producer is ' .. shown(producer) .. ', expected "" or [0-9A-Za-z_-]{1,64}')
end
if attempt ~= 'first' and attempt ~= 'repeat' then
  return redis.error_reply('BADARG attempt is ' .. shown(attempt) .. ', expected first or repeat')
end
local wrong = bad_count('seq', ARGV[2]) or (ARGV[4] ~= '' and bad_count('now_ms', ARGV[4]))
  or bad_number('layer_ms', ARGV[5], 1, 3600000) or bad_number('layers', ARGV[6], 1, 1000)
  or bad_number('keep', ARGV[7], 0, 1) or bad_number('places', ARGV[8], 1, 1000)
if wrong then return wrong end
local seq, layer_ms, layers, places = tonumber(ARGV[2]), tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[8])
if (seq > 0) ~= (producer ~= '') then
  return redis.error_reply('BADARG seq is ' .. shown(ARGV[2]) .. ', expected 1 or more with a producer, 0 without')
end
if keep and 60000 % layer_ms ~= 0 then
  return redis.error_reply('BADARG layer_ms is ' .. ARGV[5] .. ', expected one that divides a minute')
end
if #KEYS ~= 3 + 2 * places then
  return redis.error_reply('BADKEY ' .. #KEYS .. ' keys, expected ' .. 3 + 2 * places)
end
local tag = tag_of_keys()
for i, kind in ipairs({ 'producers', 'open', 'agenda' }) do
  if not tag or KEYS[i] ~= tag .. kind then return misspelt(i, kind) end
end
-- a call has many places, and what it does for each is most of its time: locals are found faster than globals
local keys, argv, argc, call, pcall = KEYS, ARGV, #ARGV, redis.call, redis.pcall
local of_views, of_visitors = tag .. 'views:', tag .. 'visitors:'
local at, starts = 9, {}
for i = 1, places do
  local page, views, count, last = argv[at], argv[at + 1], argv[at + 2] or '', at + 3
  if count ~= '1' then last = at + 2 + (count:match('^[1-9]%d*$') or math.huge) end
  local bad = last > argc
    and 'page, views and count with its visitors, expected among the arguments'
    or (page == '' or #page > 200 or page:find('[\128-\255]')) and bad_page(page)
    or views ~= '1' and (#views > 15 or not views:find('^[1-9]%d*$'))
      and 'views is ' .. shown(views) .. ', expected an integer of up to 15 digits, 1 or more'
    or bad_visitors(at + 3, last)
  if bad then return redis.error_reply('BADARG place ' .. i .. ': ' .. bad) end
  local k = 2 + 2 * i
  local stripe = keys[k]:sub(#of_views + 1, -2 - #page)
  if stripe ~= '0' and not stripe:find('^[1-9]%d*$') or keys[k] ~= of_views .. stripe .. ':' .. page then
    return misspelt(k, 'views:STRIPE:' .. page)
  end
  if keys[k + 1] ~= of_visitors .. stripe .. ':' .. page then
    return misspelt(k + 1, 'visitors:' .. stripe .. ':' .. page)
  end
  starts[i], at = at, last + 1
end
if at <= #ARGV then
  return redis.error_reply('BADARG ' .. #ARGV .. ' arguments, expected ' .. at - 1 .. ' with these places')
end

local clock = redis.call('TIME')
local now = ARGV[4] ~= '' and tonumber(ARGV[4]) or clock[1] * 1000 + math.floor(clock[2] / 1000)
local last
last, wrong = ask('HGET', producers, producer)
if wrong then return wrong end
if attempt == 'repeat' and producer ~= '' and not last then return { 'UNKNOWN' } end
if last and seq <= tonumber(last:match('^%d+')) then return { 'DUP' } end

local layer = math.floor(now / layer_ms)
local minute = math.floor(now / 60000) * 60
local named = string.format('%.0f', layer)
local gone = layer - layers
-- visitors by ms rather than by layer: who comes is behind all others, and is put there without a comparison of names
local now_ms, minute_ms = string.format('%.0f', now), minute * 1000
-- with minutes nobody of this one is forgotten, also where the window is shorter
local since = (gone + 1) * layer_ms
local forgotten = string.format('(%.0f', keep and math.min(since, minute_ms) or since)
local views_head, visitors_head, over
if keep then
  views_head, visitors_head = string.format('views/%.0f/', minute), string.format('visitors/%.0f/', minute)
  over = string.format('%.0f', (minute + 60) * 1000)
end
local kept = {}
if keep then
  for i = 1, places do
    local page = argv[starts[i]]
    kept[2 * i - 1], kept[2 * i] = views_head .. page, visitors_head .. page
  end
  local counts, _
  counts, wrong = ask_all(open, kept)
  wrong = wrong or bad_counts(open, counts)
  if wrong then return wrong end
  _, wrong = ask('ZCARD', agenda)
  if wrong then return wrong end
end

-- The first write is a plain call, and one that Redis can refuse (OOM, READONLY, MISCONF), without a producer as well:
-- what the guarded HINCRBY can answer below is about its key.
redis.call('HSET', producers, producer, ARGV[2] .. ' ' .. now_ms)

-- Whether a key holds what it should shows when it is written to, which saves a look at each; where one does not, the
-- views counted so far are taken back, and nothing else was done.
local function take_back_views(up_to, why)
  for i = 1, up_to do
    local views = KEYS[2 + 2 * i]
    local left = redis.call('HINCRBY', views, named, '-' .. ARGV[starts[i] + 1])
    if left == 0 then redis.call('HDEL', views, named) end
  end
  if last then redis.call('HSET', producers, producer, last) else redis.call('HDEL', producers, producer) end
  return why
end

local function bad_views(i, sum)
  local key, refused = KEYS[2 + 2 * i], type(sum) == 'table' and sum.err
  if refused and not refused:find('hash value') and not refused:find('overflow') then
    return take_back_views(i - 1, redis.error_reply('BADKEY ' .. key .. ' cannot be counted in: ' .. refused))
  end
  local why = redis.error_reply('BADSTATE ' .. shown(key) .. ' holds no count: ' .. (refused or sum))
  return take_back_views(refused and i - 1 or i, why)
end

-- the places that are counted in for the first time in this layer, and how many of each have left the window; of busy
-- ones it is looked now and then as well
local opened, olds = {}, {}
for i = 1, places do
  local k, views = 2 + 2 * i, argv[starts[i] + 1]
  local n, sum = views + 0, pcall('HINCRBY', keys[k], named, views)
  if type(sum) == 'table' or sum < n or sum >= 1e16 then return bad_views(i, sum) end
  if sum == n or sum % 64 < n then
    opened[i] = sum == n
    olds[i], wrong = ask('ZCOUNT', keys[k + 1], '-inf', forgotten)
    if wrong then return take_back_views(i, wrong) end
  end
end

-- Nothing below can fail. What a crash leaves of it was counted once at most.
local stay = math.max((layers + 1) * layer_ms, keep and 60000 + layer_ms or 0)

local function prolong(key, ms)
  if redis.call('PTTL', key) < ms then redis.call('PEXPIRE', key, ms) end
end

-- Drops the layers that left the window; those ahead of now, from before the clock stepped back, stay.
local function open_layer(views)
  local fields = redis.call('HKEYS', views)
  for _, field in ipairs(fields) do
    if (tonumber(field) or layer) <= gone then redis.call('HDEL', views, field) end
  end
  -- Redis keeps up to 512 fields as a list, and looks for each from its start; one that is long makes it a table
  if #fields == 64 then
    local longer = string.rep(' ', 256)
    redis.call('HSET', views, longer, '0')
    redis.call('HDEL', views, longer)
  end
end

-- more than comes in goes, and not so many that a call takes long
local function forget(visitors, count)
  local old = redis.call('ZCOUNT', visitors, '-inf', forgotten)
  if old > 0 then redis.call('ZREMRANGEBYRANK', visitors, 0, math.min(old, 200 + 2 * count) - 1) end
end

-- with GT a clock that stepped back takes nobody out
local line = {}
local function see(visitors, from, to)
  if from == to then return call('ZADD', visitors, 'GT', now_ms, argv[from]) end
  for first = from, to, 500 do
    local n = 0
    for i = first, math.min(first + 499, to) do
      line[n + 1], line[n + 2] = now_ms, argv[i]
      n = n + 2
    end
    call('ZADD', visitors, 'GT', unpack(line, 1, n))
  end
end

local function count_kept(id, n)
  if redis.call('HINCRBY', open, id, n) == n then redis.call('ZADD', agenda, over, id) end
end

for i = 1, places do
  local k, start = 2 + 2 * i, starts[i]
  local visitors, count = keys[k + 1], argv[start + 2] + 0
  local before = keep and call('ZCOUNT', visitors, minute_ms, '+inf')
  see(visitors, start + 3, start + 2 + count)
  if keep then
    count_kept(kept[2 * i - 1], argv[start + 1] + 0)
    local more = call('ZCOUNT', visitors, minute_ms, '+inf') - before
    if more > 0 then count_kept(kept[2 * i], more) end
  end
  if opened[i] then
    open_layer(keys[k])
    prolong(keys[k], stay)
    prolong(visitors, stay)
  end
  if (olds[i] or 0) > 0 then forget(visitors, count) end
end
if producer == '' then redis.call('HDEL', producers, '') end
return { 'OK' }
