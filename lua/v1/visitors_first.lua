-- visitors_first, revision 1
-- Counts each visitor of an id once: whoever is new to it adds 1 to what it has pending.
--
-- KEYS
--   1 buffer        hash      id -> pending delta
--   2 meta          hash      hits, first_at, rotated_at
--   3 producers     hash      producer -> "SEQ AT_MS [INDEX:WORD ...]": its last call, and the visitors that were new
--                             or refused in it
--   4 seen:ID...    set       visitors of the id; then the key of the next id
-- ARGV
--   1 producer      string    name of a registered writer, [0-9A-Za-z_-]{1,64}; "" gives up the fence against repeats
--   2 seq           integer   number of the call, higher than the producer's last; 0 without a producer
--   3 attempt       word      "first", or "repeat" when an earlier send of this call may have been executed
--   4 sync_hits     integer   a sync is due after so many hits
--   5 sync_ms       integer   ... or this long after the last rotation
--   6 max_pending   integer   how many distinct ids the buffer may hold
--   7 remember_ms   integer   an id's visitors are forgotten so long after the last new one; 1 or more
--   8 now_ms        integer   "" for the server's clock; anything else is for tests
--   9 ids           integer   how many ids follow, 1 to 1000
--   10 id, count, visitor...  ids  id: 1 to 255 bytes of UTF-8; count: of the visitors that follow, 1 or more;
--                             visitor: 1 to 255 bytes of any kind
-- REPLIES
--   {"OK", due, word...}      counted; due is 1 when a sync is due; for each visitor 1 where it is new to its id, 0
--                             where it was there before, or FULL where it is new and the buffer holds max_pending
--                             other ids: not counted, and not noted
--   {"DUP", due, word...}     this call was executed before, nothing done now; the words as they were answered if no
--                             later call of the producer came in between, else 0
--   {"UNKNOWN"}               a repeat from a producer that is not known: Redis lost its memory; nothing done
-- ERRORS
--   BADARG                    an argument is missing or wrong; nothing done
--   BADKEY                    a key is misspelt or holds another type; nothing done
--   BADSTATE                  a count is none: somebody wrote there; nothing done
-- REPEAT  safe with a producer and the same seq, attempt "repeat"; a visitor counts once in any case
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

local function bad_id(id)
  if id == '' or #id > 255 then return 'id has ' .. #id .. ' bytes, expected 1 to 255' end
  if id:find('[\128-\255]') and not is_utf8(id) then return 'id is not UTF-8' end
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
  return redis.error_reply('BADARG ' .. #ARGV .. ' arguments, expected 9 and then ids with their visitors')
end
local buffer, meta, producers = KEYS[1], KEYS[2], KEYS[3]
local producer, attempt = ARGV[1], ARGV[3]
if #producer > 64 or producer:find('[^0-9A-Za-z_-]') then
  return redis.error_reply('BADARG producer is ' .. shown(producer) .. ', expected "" or [0-9A-Za-z_-]{1,64}')
end
if attempt ~= 'first' and attempt ~= 'repeat' then
  return redis.error_reply('BADARG attempt is ' .. shown(attempt) .. ', expected first or repeat')
end
local wrong = bad_count('seq', ARGV[2]) or bad_count('sync_hits', ARGV[4]) or bad_count('sync_ms', ARGV[5])
  or bad_count('max_pending', ARGV[6]) or bad_number('remember_ms', ARGV[7], 1, 999999999999999)
  or (ARGV[8] ~= '' and bad_count('now_ms', ARGV[8])) or bad_number('ids', ARGV[9], 1, 1000)
if wrong then return wrong end
local seq, max_pending, count_of_ids = tonumber(ARGV[2]), tonumber(ARGV[6]), tonumber(ARGV[9])
if (seq > 0) ~= (producer ~= '') then
  return redis.error_reply('BADARG seq is ' .. shown(ARGV[2]) .. ', expected 1 or more with a producer, 0 without')
end
if #KEYS ~= 3 + count_of_ids then
  return redis.error_reply('BADKEY ' .. #KEYS .. ' keys, expected ' .. 3 + count_of_ids)
end
local tag = tag_of_keys()
for i, kind in ipairs({ 'buffer', 'meta', 'producers' }) do
  if not tag or KEYS[i] ~= tag .. kind then return misspelt(i, kind) end
end
local head, at, ids, ends, visits = tag .. 'seen:', 10, {}, {}, 0
for k = 1, count_of_ids do
  local id, count = ARGV[at], (ARGV[at + 1] or ''):match('^[1-9]%d*$')
  local last = at + 1 + (count or math.huge)
  local bad = last > #ARGV
    and 'id and count with its visitors, expected among the arguments'
    or (id == '' or #id > 255 or id:find('[\128-\255]')) and bad_id(id)
    or bad_visitors(at + 2, last)
  if bad then return redis.error_reply('BADARG id ' .. k .. ': ' .. bad) end
  if KEYS[3 + k] ~= head .. id then return misspelt(3 + k, 'seen:' .. id) end
  ids[k], visits, ends[k], at = id, visits + count, last, last + 1
end
if at <= #ARGV then
  return redis.error_reply('BADARG ' .. #ARGV .. ' arguments, expected ' .. at - 1 .. ' with these ids')
end

local clock = redis.call('TIME')
local now = ARGV[8] ~= '' and tonumber(ARGV[8]) or clock[1] * 1000 + math.floor(clock[2] / 1000)
local state, last
last, wrong = ask('HGET', producers, producer)
if wrong then return wrong end
state, wrong = ask('HMGET', meta, 'hits', 'rotated_at')
if wrong then return wrong end

if attempt == 'repeat' and producer ~= '' and not last then return { 'UNKNOWN' } end
local waiting, since = tonumber(state[1]) or 0, tonumber(state[2]) and now - tonumber(state[2])
-- a clock that stepped back must not hold a sync off
local function due(hits)
  return (not since or since < 0 or since >= tonumber(ARGV[5]) or hits >= tonumber(ARGV[4])) and 1 or 0
end
local last_seq = last and tonumber(last:match('^%d+'))
if last and seq <= last_seq then
  local reply = { 'DUP', due(waiting) }
  for i = 1, visits do reply[2 + i] = 0 end
  for index, word in (seq == last_seq and last or ''):gmatch('(%d+):(%u+)') do
    if reply[2 + index] then reply[2 + index] = word == 'FULL' and word or 1 end
  end
  return reply
end

local pending, held, _
pending, wrong = ask_all(buffer, ids)
wrong = wrong or bad_counts(buffer, pending) or bad_count_of(meta, state[1])
if wrong then return wrong end
held = redis.call('HLEN', buffer)
for k = 4, #KEYS do
  _, wrong = ask('SCARD', KEYS[k])
  if wrong then return wrong end
end

-- Nothing below can fail but the first write, where Redis takes none (OOM, READONLY, MISCONF). What a crash leaves of
-- it was counted once at most.
local now_ms = string.format('%.0f', now)
local last_call = ARGV[2] .. ' ' .. now_ms
if producer ~= '' then redis.call('HSET', producers, producer, last_call) end
local crowded = held + count_of_ids > max_pending
-- Redis keeps up to 512 ids as a list, and looks for each from the start; a field longer than any id makes it a table
local longer = held < 64 and held + count_of_ids >= 64 and string.rep(' ', 256)
if longer then redis.call('HSET', buffer, longer, '0') end

local reply, words, visit, hits = { 'OK', 0 }, {}, 0, 0
at = 10
for k = 1, count_of_ids do
  local id, seen, new = ids[k], KEYS[3 + k], 0
  local is_other = crowded and redis.call('HEXISTS', buffer, id) == 0
  local is_full = is_other and held >= max_pending
  for i = at + 2, ends[k] do
    visit = visit + 1
    local word = 0
    if is_full then
      if redis.call('SISMEMBER', seen, ARGV[i]) == 0 then word = 'FULL' end
    elseif redis.call('SADD', seen, ARGV[i]) == 1 then
      word, new = 1, new + 1
    end
    reply[2 + visit] = word
    if word ~= 0 then words[#words + 1] = visit .. (word == 1 and ':NEW' or ':FULL') end
  end
  if new > 0 then
    redis.call('HINCRBY', buffer, id, new)
    redis.call('PEXPIRE', seen, ARGV[7])
    if is_other then held = held + 1 end
    hits = hits + new
  end
  at = ends[k] + 1
end
if longer then redis.call('HDEL', buffer, longer) end
if hits > 0 then
  redis.call('HINCRBY', meta, 'hits', hits)
  if waiting == 0 then redis.call('HSET', meta, 'first_at', now_ms) end
end
if producer ~= '' and words[1] then
  redis.call('HSET', producers, producer, last_call .. ' ' .. table.concat(words, ' '))
end
reply[2] = due(waiting + hits)
return reply
