-- series_add, revision 1
-- Counts into the current slice of every precision.
--
-- KEYS
--   1 producers     hash      producer -> "SEQ AT_MS [INDEX:WORD ...]": its last call, and the pairs refused in it
--   2 open          hash      kept id -> count of a slice that is not over, and is to be kept in the database
--   3 agenda        zset      kept id -> ms: when its slice is over; every id in open is on it
--   4 names         zset      name -> 0: those with anything in a window
--   5 idle          zset      name -> ms: when the last slice of it has left every window
--   6 series:LABEL:NAME...  hash  slice's start in Unix seconds -> count; for each pair one for each precision
-- ARGV
--   1 producer      string    name of a registered writer, [0-9A-Za-z_-]{1,64}; "" gives up the fence against repeats
--   2 seq           integer   number of the call, higher than the producer's last; 0 without a producer
--   3 attempt       word      "first", or "repeat" when an earlier send of this call may have been executed
--   4 now_ms        integer   "" for the server's clock; anything else is for tests
--   5 precisions    integer   how many of them follow, 1 to 16
--   6 precision     words     so many: "LABEL SLICE SLICES KEEP". LABEL: [0-9a-z]{1,12}, no two alike; SLICE: a fixed
--                             length in seconds, up to 31536000, or "START-END" in Unix seconds: the slice of a
--                             calendar, up to 366 days, that the caller takes for the current one; SLICES: how many a
--                             window has with the current one, 1 to 1000; KEEP: what a kept id has before its name,
--                             in ASCII, with one "*" at most for the slice's start, or "-" for none
--   7 name, n       pairs     name: 1 to 200 bytes of UTF-8, a kept id 255 at most; n: what to add, an i64 of 1
--                             or more; 1 to 100 pairs
-- REPLIES
--   {"OK", word...}           for each pair 1 where it was counted, or RANGE where a sum would leave i64: that pair was
--                             not counted, the others were
--   {"DUP", word...}          this call was executed before, nothing done now; same shape, with RANGE as it was
--                             answered if no later call of the producer came in between
--   {"UNKNOWN"}               a repeat from a producer that is not known: Redis lost its memory; nothing done
--   {"OUTSIDE", now_ms}       by the server's clock, a string, the slice of a calendar is another one; nothing done
-- ERRORS
--   BADARG                    an argument is missing or wrong; nothing done
--   BADKEY                    a key is misspelt or holds another type; nothing done
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

local function bad_addition(name, n, limit)
  if name == '' or #name > limit then return 'name has ' .. #name .. ' bytes, expected 1 to ' .. limit end
  if name:find('[\128-\255]') and not is_utf8(name) then return 'name is not UTF-8' end
  if not n:find('^[1-9]%d*$') or #n > 19 or (#n == 19 and n > '9223372036854775807') then
    return 'n is ' .. shown(n) .. ', expected an i64 of 1 or more'
  end
end

-- what "LABEL SLICE SLICES KEEP" says; nothing where it is ill-formed
local words = '^([0-9a-z]+) ([1-9]%d*)(%-?)(%d*) ([1-9]%d*) ([!-~]+)$'
local function precision(text, now)
  local label, slice, dash, finish, slices, keep = text:match(words)
  if not label or #label > 12 or #slice > 11 or #finish > 11 or #slices > 4 then return nil end
  local length = tonumber(slice)
  local start, over
  if dash == '' then
    if length > 31536000 then return nil end
    start = math.floor(now / 1000 / length) * length
    over = start + length
  else
    start, over = length, tonumber(finish) or 0
    length = over - start
    if length < 1 or length > 31622400 then return nil end
    -- days and months differ in length: this is more than any of them
    length = math.ceil(length * 6 / 5)
  end
  return label, start, over, length, tonumber(slices), keep, dash == ''
end

if #ARGV < 8 then
  return redis.error_reply('BADARG ' .. #ARGV .. ' arguments, expected 5, then precisions, then pairs of name and n')
end
local producers, open, agenda, names, idle = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local producer, attempt = ARGV[1], ARGV[3]
if #producer > 64 or producer:find('[^0-9A-Za-z_-]') then
  return redis.error_reply('BADARG producer is ' .. shown(producer) .. ', expected "" or [0-9A-Za-z_-]{1,64}')
end
if attempt ~= 'first' and attempt ~= 'repeat' then
  return redis.error_reply('BADARG attempt is ' .. shown(attempt) .. ', expected first or repeat')
end
local wrong = bad_count('seq', ARGV[2]) or (ARGV[4] ~= '' and bad_count('now_ms', ARGV[4]))
  or bad_count('precisions', ARGV[5])
if wrong then return wrong end
local seq, precisions = tonumber(ARGV[2]), tonumber(ARGV[5])
if (seq > 0) ~= (producer ~= '') then
  return redis.error_reply('BADARG seq is ' .. shown(ARGV[2]) .. ', expected 1 or more with a producer, 0 without')
end
if precisions < 1 or precisions > 16 then
  return redis.error_reply('BADARG precisions is ' .. ARGV[5] .. ', expected 1 to 16')
end
local first = 6 + precisions
local pairs_there = (#ARGV - first + 1) / 2
if pairs_there < 1 or pairs_there > 100 or pairs_there % 1 ~= 0 then
  return redis.error_reply('BADARG ' .. #ARGV .. ' arguments do not fit ' .. ARGV[5]
    .. ' precisions and 1 to 100 pairs')
end
if #KEYS ~= 5 + pairs_there * precisions then
  return redis.error_reply('BADKEY ' .. #KEYS .. ' keys, expected ' .. 5 + pairs_there * precisions)
end
local tag = tag_of_keys()
for i, kind in ipairs({ 'producers', 'open', 'agenda', 'names', 'idle' }) do
  if not tag or KEYS[i] ~= tag .. kind then return misspelt(i, kind) end
end

local clock = redis.call('TIME')
local now = ARGV[4] ~= '' and tonumber(ARGV[4]) or clock[1] * 1000 + math.floor(clock[2] / 1000)
-- what the keys of the windows begin with, the starts of the current slices, what kept ids begin with, and which of the
-- windows reaches furthest back
local windows, starts, kept, kept_over, longest, reach = {}, {}, {}, {}, 1, 0
local limit, labels, is_outside = 200, {}, false
for k = 1, precisions do
  local label, start, over, length, slices, keep = precision(ARGV[5 + k], now)
  local stars = 0
  if label then starts[k] = string.format('%.0f', start) end
  if label and keep ~= '-' then
    keep, stars = keep:gsub('%*', starts[k])
    kept[#kept + 1], kept_over[#kept + 1] = keep, over
    limit = math.min(limit, 255 - #keep)
  end
  if not label or slices > 1000 or stars > 1 or labels[label] then
    return redis.error_reply('BADARG precision ' .. k .. ' is ' .. shown(ARGV[5 + k])
      .. ', expected LABEL SLICE SLICES KEEP, each label once')
  end
  labels[label], windows[k] = true, tag .. 'series:' .. label .. ':'
  if now < start * 1000 or now >= over * 1000 then is_outside = true end
  if slices * length > reach then longest, reach = k, slices * length end
end
-- a call has few different amounts, and mostly ASCII: the usual pair is let through quickly
local good_amounts, at = { ['1'] = true }, 5
for i = first, #ARGV, 2 do
  local name, n = ARGV[i], ARGV[i + 1]
  if not (good_amounts[n] and name ~= '' and #name <= limit and name:find('^[^\128-\255]*$')) then
    local bad = bad_addition(name, n, limit)
    if bad then return redis.error_reply('BADARG pair ' .. (i - first) / 2 + 1 .. ': ' .. bad) end
    good_amounts[n] = true
  end
  for k = 1, precisions do
    if KEYS[at + k] ~= windows[k] .. name then return misspelt(at + k, windows[k]:sub(#tag + 1) .. name) end
  end
  at = at + precisions
end

local last
last, wrong = ask('HGET', producers, producer)
if wrong then return wrong end
if attempt == 'repeat' and producer ~= '' and not last then return { 'UNKNOWN' } end
local last_seq = last and tonumber(last:match('^%d+'))
local done = last and seq <= last_seq
if done then
  local reply = { 'DUP' }
  for i = 1, pairs_there do reply[i + 1] = 1 end
  for index, word in (seq == last_seq and last or ''):gmatch('(%d+):(%u+)') do
    if reply[index + 1] then reply[index + 1] = word end
  end
  return reply
end
local now_ms = string.format('%.0f', now)
if is_outside then return { 'OUTSIDE', now_ms } end

-- the t-th place that a pair counts into: first its windows, then its kept ids
local targets = precisions + #kept
local function target(i, t)
  if t <= precisions then return KEYS[5 + (i - first) / 2 * precisions + t], starts[t] end
  return open, kept[t - precisions] .. ARGV[i]
end

local function take_back(i, up_to)
  for t = 1, up_to do
    local hash, field = target(i, t)
    if redis.call('HINCRBY', hash, field, '-' .. ARGV[i + 1]) == 0 then redis.call('HDEL', hash, field) end
  end
end

-- Whether a key holds what it should shows when it is written to, which saves a look at each; where one does not, all
-- that the call did is taken back. Until then it only added, so that this can be done.
local refused = {}
local function give_up(up_to, why)
  for i = first, up_to, 2 do
    if not refused[i] then take_back(i, targets) end
  end
  if last then redis.call('HSET', producers, producer, last) else redis.call('HDEL', producers, producer) end
  return why
end

-- The first write is a plain call, and one that Redis can refuse (OOM, READONLY, MISCONF), without a producer as well:
-- what the guarded HINCRBY can answer below is about its key.
local last_call, refusals = ARGV[2] .. ' ' .. now_ms, ''
redis.call('HSET', producers, producer, last_call)
-- of the slices that are counted into for the first time, the pair and the place
local opened, openings, kept_openings = {}, 0, 0
local reply = { 'OK' }
for i = first, #ARGV, 2 do
  local n, nth, openings_before, kept_before = tonumber(ARGV[i + 1]), (i - first) / 2 + 1, openings, kept_openings
  reply[nth + 1] = 1
  for t = 1, targets do
    local hash, field = target(i, t)
    local sum = redis.pcall('HINCRBY', hash, field, ARGV[i + 1])
    if sum == n then
      opened[openings + 1], opened[openings + 2], openings = i, t, openings + 2
      if t > precisions then kept_openings = kept_openings + 1 end
    elseif type(sum) == 'table' then
      take_back(i, t - 1)
      if not sum.err:find('overflow') then
        return give_up(i - 2, redis.error_reply('BADKEY ' .. hash .. ' cannot be counted in: ' .. sum.err))
      end
      refused[i], reply[nth + 1], openings, kept_openings = true, 'RANGE', openings_before, kept_before
      refusals = refusals .. ' ' .. nth .. ':RANGE'
      break
    end
  end
end
if openings > 0 then
  for i = 3, 5 do
    local _, bad = ask('ZCARD', KEYS[i])
    if bad then return give_up(#ARGV, bad) end
  end
end

-- nothing below can fail
local function expire(key, at_ms)
  local ms = at_ms - now
  if redis.call('PTTL', key) < ms then redis.call('PEXPIRE', key, string.format('%.0f', ms)) end
end

local function trim(window, slices, oldest, is_fixed)
  local held = redis.call('HLEN', window)
  if held <= slices then return end
  -- mostly there is one too many, and this one
  if is_fixed and held - redis.call('HDEL', window, string.format('%.0f', oldest)) <= slices then return end
  for _, field in ipairs(redis.call('HKEYS', window)) do
    -- what lies ahead of the clock, since it stepped back, stays; so does what is no time, which somebody wrote there
    if (tonumber(field) or math.huge) <= oldest then redis.call('HDEL', window, field) end
  end
end

local function remember(name, gone_ms)
  redis.call('ZADD', names, '0', name)
  redis.call('ZADD', idle, 'GT', string.format('%.0f', gone_ms), name)
  expire(names, gone_ms)
  expire(idle, gone_ms)
  for _, gone in ipairs(redis.call('ZRANGEBYSCORE', idle, '-inf', now_ms, 'LIMIT', '0', '16')) do
    redis.call('ZREM', names, gone)
    redis.call('ZREM', idle, gone)
  end
end

for o = 1, openings, 2 do
  local i, t = opened[o], opened[o + 1]
  local hash, field = target(i, t)
  if t > precisions then
    redis.call('ZADD', agenda, string.format('%.0f', kept_over[t - precisions] * 1000), field)
  else
    local _, start, _, length, slices, _, is_fixed = precision(ARGV[5 + t], now)
    trim(hash, slices, start - slices * length, is_fixed)
    -- one slice more than the window has, as a margin
    local gone_ms = (start + (slices + 1) * length) * 1000
    expire(hash, gone_ms)
    if t == longest then remember(ARGV[i], gone_ms) end
  end
end
if kept_openings > 0 then
  -- Redis keeps up to 512 ids as a list, and looks for each from the start; a field longer than any id makes it a table
  local held = redis.call('HLEN', open)
  if held >= 64 and held - kept_openings < 64 then
    local longer = string.rep(' ', 256)
    redis.call('HSET', open, longer, '0')
    redis.call('HDEL', open, longer)
  end
end
if producer == '' then
  redis.call('HDEL', producers, '')
elseif refusals ~= '' then
  redis.call('HSET', producers, producer, last_call .. refusals)
end
return reply
