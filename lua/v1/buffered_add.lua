-- buffered_add, revision 1
-- Counts hits: adds each delta to what its id has pending.
--
-- KEYS
--   1 buffer        hash      id -> pending delta
--   2 meta          hash      hits, first_at, rotated_at
--   3 producers     hash      producer -> "SEQ AT_MS [INDEX:WORD ...]": its last call, and the pairs refused in it
-- ARGV
--   1 producer      string    name of a registered writer, [0-9A-Za-z_-]{1,64}; "" gives up the fence against repeats
--   2 seq           integer   number of the call, higher than the producer's last; 0 without a producer
--   3 attempt       word      "first", or "repeat" when an earlier send of this call may have been executed
--   4 hits          integer   how many hits the call stands for
--   5 sync_hits     integer   a sync is due after so many hits
--   6 sync_ms       integer   ... or this long after the last rotation
--   7 max_pending   integer   how many distinct ids the buffer may hold
--   8 now_ms        integer   "" for the server's clock; anything else is for tests
--   9 id, delta     pairs     id: 1 to 255 bytes of UTF-8; delta: an i64 in canonical decimal; one pair or more
-- REPLIES
--   {"OK", due, pending...}   counted; due is 1 when a sync is due; for each pair what its id has pending now, an
--                             integer, or a string where it is beyond 2^53; or RANGE where the sum would leave i64,
--                             or FULL where the buffer holds max_pending other ids: that pair was not counted, the
--                             others were
--   {"DUP", due, pending...}  this call was executed before, nothing done now; same shape, with RANGE and FULL as
--                             they were answered if no later call of the producer came in between
--   {"UNKNOWN"}               a repeat from a producer that is not known: Redis lost its memory; nothing done
-- ERRORS
--   BADARG                    an argument is missing or wrong; nothing done
--   BADKEY                    a key is misspelt or holds another type; nothing done
-- REPEAT  safe with a producer and the same seq, attempt "repeat"; counts again without a producer
-- SINCE   0.1.0

-- what an error quotes is short and ASCII: some clients end the connection over other bytes
local function shown(text) return (text:sub(1, 200):gsub('[^ -~]', '?')) end

local function bad_key(...)
  if #KEYS ~= select('#', ...) then
    return redis.error_reply('BADKEY ' .. #KEYS .. ' keys, expected ' .. select('#', ...))
  end
  local tag, namespace, family, number = KEYS[1]:match('^(cf1:{([a-z0-9_.%-]+)/([a-z0-9_.%-]+)/(%d+)}:)')
  local good = tag and #namespace <= 64 and #family <= 64 and (number == '0' or number:byte() ~= 48)
  for i = 1, #KEYS do
    local kind = select(i, ...)
    if not good or KEYS[i] ~= tag .. kind then
      return redis.error_reply('BADKEY ' .. i .. ' of ' .. #KEYS .. ' is ' .. shown(KEYS[i]) .. ', expected '
        .. 'cf1:{NAMESPACE/FAMILY/PARTITION}:' .. kind .. ' with names of [a-z0-9_.-]{1,64}')
    end
  end
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

local function bad_pair(id, delta)
  if id == '' or #id > 255 then return 'id has ' .. #id .. ' bytes, expected 1 to 255' end
  if id:find('[\128-\255]') and not is_utf8(id) then return 'id is not UTF-8' end
  local sign, digits = delta:match('^(%-?)([1-9]%d*)$')
  local limit = sign == '-' and '9223372036854775808' or '9223372036854775807'
  if delta ~= '0' and not (digits and (#digits < 19 or (#digits == 19 and digits <= limit))) then
    return 'delta is ' .. shown(delta) .. ', expected an i64'
  end
end

-- Lua's numbers are exact below 2^53 only
local function is_exact(sum) return sum > -9007199254740992 and sum < 9007199254740992 end

local wrong = bad_key('buffer', 'meta', 'producers')
if wrong then return wrong end
if #ARGV < 10 or #ARGV % 2 ~= 0 then
  return redis.error_reply('BADARG ' .. #ARGV .. ' arguments, expected 8 and then pairs of id and delta')
end
local buffer, meta, producers = KEYS[1], KEYS[2], KEYS[3]
local producer, attempt = ARGV[1], ARGV[3]
if #producer > 64 or producer:find('[^0-9A-Za-z_-]') then
  return redis.error_reply('BADARG producer is ' .. shown(producer) .. ', expected "" or [0-9A-Za-z_-]{1,64}')
end
if attempt ~= 'first' and attempt ~= 'repeat' then
  return redis.error_reply('BADARG attempt is ' .. shown(attempt) .. ', expected first or repeat')
end
wrong = bad_count('seq', ARGV[2]) or bad_count('hits', ARGV[4]) or bad_count('sync_hits', ARGV[5])
  or bad_count('sync_ms', ARGV[6]) or bad_count('max_pending', ARGV[7])
  or (ARGV[8] ~= '' and bad_count('now_ms', ARGV[8]))
if wrong then return wrong end
local seq, hits, max_pending = tonumber(ARGV[2]), tonumber(ARGV[4]), tonumber(ARGV[7])
if (seq > 0) ~= (producer ~= '') then
  return redis.error_reply('BADARG seq is ' .. shown(ARGV[2]) .. ', expected 1 or more with a producer, 0 without')
end
-- a call has many pairs, few different deltas, and mostly ASCII: the usual pair is let through quickly
local good_deltas = { ['1'] = true }
for i = 9, #ARGV, 2 do
  local id, delta = ARGV[i], ARGV[i + 1]
  if not (good_deltas[delta] and id ~= '' and #id <= 255 and id:find('^[^\128-\255]*$')) then
    local bad = bad_pair(id, delta)
    if bad then return redis.error_reply('BADARG pair ' .. (i - 7) / 2 .. ': ' .. bad) end
    good_deltas[delta] = true
  end
end

local clock = redis.call('TIME')
local now = ARGV[8] ~= '' and tonumber(ARGV[8]) or clock[1] * 1000 + math.floor(clock[2] / 1000)
local held, state, last
held, wrong = ask('HLEN', buffer)
if wrong then return wrong end
state, wrong = ask('HMGET', meta, 'hits', 'rotated_at')
if wrong then return wrong end
last, wrong = ask('HGET', producers, producer)
if wrong then return wrong end

if attempt == 'repeat' and producer ~= '' and not last then return { 'UNKNOWN' } end
local last_seq = last and tonumber(last:match('^%d+'))
local done = last and seq <= last_seq
local waiting = tonumber(state[1] or 0)
local total = done and waiting or waiting + hits
local since = state[2] and now - tonumber(state[2])
-- a clock that stepped back must not hold a sync off
local due = (not since or since < 0 or since >= tonumber(ARGV[6]) or total >= tonumber(ARGV[5])) and 1 or 0
if done then
  local reply = { 'DUP', due }
  for i = 9, #ARGV, 2 do
    local sum = redis.call('HGET', buffer, ARGV[i]) or '0'
    reply[#reply + 1] = is_exact(tonumber(sum)) and tonumber(sum) or sum
  end
  for index, word in (seq == last_seq and last or ''):gmatch('(%d+):(%u+)') do
    if ARGV[7 + 2 * index] then reply[2 + index] = word end
  end
  return reply
end

-- The first write is a plain call, and the one that can fail: where Redis takes no writes (OOM, READONLY, MISCONF) it
-- ends the script here, so that what the guarded HINCRBY can answer below is about that one id.
redis.call('HINCRBY', meta, 'hits', ARGV[4])
local now_ms = string.format('%.0f', now)
local last_call, refusals = ARGV[2] .. ' ' .. now_ms, ''
if producer ~= '' then redis.call('HSET', producers, producer, last_call) end
if waiting == 0 then redis.call('HSET', meta, 'first_at', now_ms) end
local at_most = held + (#ARGV - 8) / 2
local crowded = at_most > max_pending
-- Redis keeps up to 512 ids as a list, and looks for each from the start; a field longer than any id makes it a table
local longer = held < 64 and at_most >= 64 and string.rep(' ', 256)
if longer then redis.call('HSET', buffer, longer, '0') end
local reply, at = { 'OK', due }, 2
for i = 9, #ARGV, 2 do
  local is_new = crowded and redis.call('HEXISTS', buffer, ARGV[i]) == 0
  local sum, refused
  if is_new and held >= max_pending then
    refused = 'FULL'
  else
    sum = redis.pcall('HINCRBY', buffer, ARGV[i], ARGV[i + 1])
    if type(sum) == 'table' then
      refused = 'RANGE'
    else
      if is_new then held = held + 1 end
      if not is_exact(sum) then sum = redis.call('HGET', buffer, ARGV[i]) end
    end
  end
  if refused then
    sum = refused
    refusals = refusals .. ' ' .. (i - 7) / 2 .. ':' .. refused
  end
  at = at + 1
  reply[at] = sum
end
if longer then redis.call('HDEL', buffer, longer) end
if producer ~= '' and refusals ~= '' then redis.call('HSET', producers, producer, last_call .. refusals) end
return reply
