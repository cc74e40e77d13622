-- cached_incr, revision 1
-- Changes counters that are there, seeds those that are handed in, and answers each one's new value.
--
-- KEYS
--   1 values        hash      id -> value; a counter is there while it has one
--   2 rows          hash      id -> "BASE SAVED LINEAGE N USED [CLAIM AT]", or "ticket HEX16" before it is seeded
--   3 agenda        zset      id -> ms: when something is next to be done about it
--   4 producers     hash      producer -> "SEQ AT_MS [WORD ...]": its last call, and what that was answered
-- ARGV
--   1 producer       string   name of a registered writer, [0-9A-Za-z_-]{1,64}; "" gives up the fence against repeats
--   2 seq            integer  number of the call, higher than the producer's last; 0 without a producer
--   3 attempt        word     "first", or "repeat" when an earlier send of this call may have been executed
--   4 ticket         hex16    random, a new one for each send: for the counters that are not there
--   5 ticket_ms      integer  how long a ticket is kept
--   6 save_after_ms  integer  a save is due so long after a change
--   7 retain_ms      integer  a counter that is saved may be deleted when it was not changed for so long
--   8 min            i64      a change downwards must not end below it; "" for none
--   9 max            i64      a change upwards must not end above it; "" for none
--   10 now_ms        integer  "" for the server's clock; anything else is for tests
--   11 seeds         integer  how many counters are handed in
--   12 id, ticket, value, version  fours  so many: what the primary has, read after the ticket was had; "-" for none
--   13 id, change   pairs     id: 1 to 255 bytes of UTF-8; change: an i64 to add, or "=" and an i64 to set; one or more
-- REPLIES
--   {"OK", word...}           done; for each pair the new value, an integer, or a string where it is beyond 2^53; or
--                             MISS:ticket where the counter is not there: read its row from the primary and come again
--                             with it; or RANGE:value where it would leave i64 or the bounds: unchanged
--   {"DUP", word...}          this call, the producer's last one, was executed before: nothing done now, same words
--   {"UNKNOWN"}               a repeat from a producer that is not known, since Redis lost its memory; or a call before
--                             the producer's last one, whose words are not kept; nothing done
-- ERRORS
--   BADARG                    an argument is missing or wrong; nothing done
--   BADKEY                    a key is misspelt or holds another type; nothing done
--   BADSTATE                  a value whose row is gone or of another shape: somebody wrote there; nothing done
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

local function bad_id(id)
  if id == '' or #id > 255 then return 'id has ' .. #id .. ' bytes, expected 1 to 255' end
  if id:find('[\128-\255]') and not is_utf8(id) then return 'id is not UTF-8' end
end

local function is_i64(text)
  local sign, digits = text:match('^(%-?)([1-9]%d*)$')
  local limit = sign == '-' and '9223372036854775808' or '9223372036854775807'
  return text == '0' or (digits and (#digits < 19 or (#digits == 19 and digits <= limit)))
end

local function is_random(text) return #text == 16 and not text:find('[^0-9a-f]') end

local function is_version(text)
  local lineage, n = text:match('^(%w+):([1-9]%d*)$')
  return lineage and is_random(lineage) and #n <= 15
end

local function bad_row(value, version)
  if value ~= '-' and not is_i64(value) then return 'value is ' .. shown(value) .. ', expected an i64 or "-"' end
  if version ~= '-' and not is_version(version) then
    return 'version is ' .. shown(version) .. ', expected LINEAGE:N or "-"'
  end
end

local function bad_seed(id, ticket, value, version)
  if not is_random(ticket) then return 'ticket is ' .. shown(ticket) .. ', expected 16 hexadecimal digits' end
  return bad_id(id) or bad_row(value, version)
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

-- Redis keeps up to 512 fields as a list, and looks for each from its start; a field longer than an id makes it a table
local function grow(key, fields, more)
  local held = more > 0 and redis.call('HLEN', key) or 64
  local longer = held < 64 and held + more >= 64 and string.rep(' ', 256)
  if longer then redis.call('HSET', key, longer, '0') end
  for from = 1, #fields, 1000 do redis.call('HSET', key, part(fields, from)) end
  if longer then redis.call('HDEL', key, longer) end
end

-- Lua's numbers are exact below 2^53 only
local function is_exact(sum) return sum > -9007199254740992 and sum < 9007199254740992 end

-- an i64 as 10^9 times the first number plus the second one, both with its sign
local function halves(text)
  local sign, digits = text:match('^(%-?)(%d+)$')
  local unit = sign == '-' and -1 or 1
  return unit * (tonumber(digits:sub(1, -10)) or 0), unit * tonumber(digits:sub(-9))
end

-- the way back, also with halves that were added up; nothing where that leaves i64
local function decimal(high, low)
  high, low = high + math.floor(low / 1000000000), low % 1000000000
  if high > 9223372036 or (high == 9223372036 and low > 854775807) then return nil end
  if high < -9223372037 or (high == -9223372037 and low < 145224192) then return nil end
  local sign = ''
  if high < 0 then
    sign, high, low = '-', low > 0 and -high - 1 or -high, (1000000000 - low) % 1000000000
  end
  local digits = string.format('%.0f%09.0f', high, low):gsub('^0+(%d)', '%1')
  return sign .. digits
end

local function sum(a, b)
  local a_high, a_low = halves(a)
  local b_high, b_low = halves(b)
  return decimal(a_high + b_high, a_low + b_low)
end

local function is_less(a, b)
  -- where rounding makes them differ, they do
  local x, y = tonumber(a), tonumber(b)
  if x ~= y then return x < y end
  local a_high, a_low = halves(a)
  local b_high, b_low = halves(b)
  return a_high < b_high or (a_high == b_high and a_low < b_low)
end

local function word(text)
  local number = tonumber(text)
  return number and is_exact(number) and number or text
end

-- no row in the database is the same as a row of 0
local function is_clean(value, row)
  return row:find(value .. ' ', 1, true) == 1 or (value == '0' and row:find('- ', 1, true) == 1)
end

local wrong = bad_key('values', 'rows', 'agenda', 'producers')
if wrong then return wrong end
if #ARGV < 13 then
  return redis.error_reply('BADARG ' .. #ARGV .. ' arguments, expected 11, then seeds, then pairs of id and change')
end
local producer, seq, attempt, ticket, low, high = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4], ARGV[8], ARGV[9]
if #producer > 64 or producer:find('[^0-9A-Za-z_-]') then
  return redis.error_reply('BADARG producer is ' .. shown(producer) .. ', expected "" or [0-9A-Za-z_-]{1,64}')
end
if attempt ~= 'first' and attempt ~= 'repeat' then
  return redis.error_reply('BADARG attempt is ' .. shown(attempt) .. ', expected first or repeat')
end
wrong = bad_count('seq', ARGV[2]) or bad_count('ticket_ms', ARGV[5]) or bad_count('save_after_ms', ARGV[6])
  or bad_count('retain_ms', ARGV[7]) or (ARGV[10] ~= '' and bad_count('now_ms', ARGV[10]))
  or bad_count('seeds', ARGV[11])
if wrong then return wrong end
if (seq > 0) ~= (producer ~= '') then
  return redis.error_reply('BADARG seq is ' .. shown(ARGV[2]) .. ', expected 1 or more with a producer, 0 without')
end
if not is_random(ticket) then
  return redis.error_reply('BADARG ticket is ' .. shown(ticket) .. ', expected 16 hexadecimal digits')
end
if (low ~= '' and not is_i64(low)) or (high ~= '' and not is_i64(high)) then
  return redis.error_reply('BADARG min and max are ' .. shown(low) .. ' and ' .. shown(high) .. ', expected i64 or ""')
end
local first = 12 + 4 * tonumber(ARGV[11])
if #ARGV <= first or (#ARGV - first) % 2 == 0 then
  return redis.error_reply('BADARG ' .. #ARGV .. ' arguments do not fit ' .. ARGV[11] .. ' seeds and pairs')
end

-- the ids of the call, each once, and where each stands among them
local ids, at, distinct = {}, {}, 0
local function name(id)
  if not at[id] then
    distinct = distinct + 1
    ids[distinct], at[id] = id, distinct
  end
end

for i = 12, first - 1, 4 do
  local bad = bad_seed(ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3])
  if bad then return redis.error_reply('BADARG seed ' .. (i - 8) / 4 .. ': ' .. bad) end
  name(ARGV[i])
end
-- a call has many pairs, few different changes, and mostly ASCII: the usual pair is let through quickly; below 10^14
-- Lua's numbers are exact, and become the same text again
local small = { ['1'] = 1 }
for i = first, #ARGV, 2 do
  local id, change = ARGV[i], ARGV[i + 1]
  if not (small[change] and id ~= '' and #id <= 255 and id:find('^[^\128-\255]*$')) then
    local bad = bad_id(id)
    if not bad and not is_i64(change:match('^=?(.*)$')) then
      bad = 'change is ' .. shown(change) .. ', expected an i64, or = and an i64'
    end
    if bad then return redis.error_reply('BADARG pair ' .. (i - first) / 2 + 1 .. ': ' .. bad) end
    small[change] = #change < 15 and tonumber(change) or nil
  end
  name(id)
end

local clock = redis.call('TIME')
local now = ARGV[10] ~= '' and tonumber(ARGV[10]) or clock[1] * 1000 + math.floor(clock[2] / 1000)
local last, values, rows, _
last, wrong = ask('HGET', KEYS[4], producer)
if wrong then return wrong end
values, wrong = ask_all(KEYS[1], ids)
if wrong then return wrong end
rows, wrong = ask_all(KEYS[2], ids)
if wrong then return wrong end

if producer ~= '' then
  local last_seq = last and tonumber(last:match('^%d+'))
  if seq == last_seq then
    local reply = { 'DUP' }
    for text in (last:match('^%d+ %d+(.*)$') or ''):gmatch('%S+') do reply[#reply + 1] = word(text) end
    return reply
  end
  if (last and seq < last_seq) or (attempt == 'repeat' and not last) then return { 'UNKNOWN' } end
end

local plans, new_rows, new_values = {}, {}, {}
local function plan(id, ms, row)
  rows[at[id]] = row
  plans[#plans + 1], plans[#plans + 2] = string.format('%.0f', now + tonumber(ms)), id
  new_rows[#new_rows + 1], new_rows[#new_rows + 2] = id, row
end

local function seed(id, its_ticket, value, version, retain_ms)
  if not values[at[id]] and rows[at[id]] == 'ticket ' .. its_ticket then
    plan(id, retain_ms, value .. ' ' .. version .. ' ' .. its_ticket .. ' 0 ' .. string.format('%.0f', now))
    values[at[id]] = value == '-' and '0' or value
    new_values[#new_values + 1], new_values[#new_values + 2] = id, values[at[id]]
  end
end

local lowest, highest = tonumber(low) or -math.huge, tonumber(high) or math.huge
-- the new value as text, and as a number where it is small; nothing where it would be out of range
local function changed(value, change)
  local delta = small[change]
  local result = delta and value + delta
  if result and result > -100000000000000 and result < 100000000000000 then
    if (delta < 0 and result < lowest) or (delta > 0 and result > highest) then return nil end
    return result .. '', result
  end
  local goal = change:match('^=(.*)$')
  local falls, rises = goal or change:byte() == 45, goal or change:find('^[1-9]')
  result = goal or sum(value, change)
  if not result or (low ~= '' and falls and is_less(result, low))
    or (high ~= '' and rises and is_less(high, result)) then return nil end
  return result, word(result)
end

for i = 12, first - 1, 4 do seed(ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[7]) end
local seeded, changes = #new_values / 2, #new_values
local save_at = string.format('%.0f', now + tonumber(ARGV[6]))
local reply, words, saves = { 'OK' }, {}, {}
for i = first, #ARGV, 2 do
  local id, change, nth = ARGV[i], ARGV[i + 1], (i - first) / 2 + 1
  local k = at[id]
  local value, row = values[k], rows[k]
  local text, answer
  if not value then
    if not (row and row:find('^ticket %x+$')) then
      row = 'ticket ' .. ticket
      plan(id, ARGV[5], row)
    end
    text = 'MISS:' .. row:sub(8)
  else
    -- a row that is dirty had its shape looked at when it became so, and has it looked at when it is claimed
    local clean = row and is_clean(value, row)
    local shape = clean and '^[-%d]%d* [-=:%x]+ %x+ %d+ %d' or '^[-%d]'
    if not (row and row:find(shape) and value:find('^%-?%d+$')) then
      return redis.error_reply('BADSTATE ' .. shown(id) .. ' has a value, and no row that fits: somebody wrote there')
    end
    text, answer = changed(value, change)
    if text then
      values[k] = text
      new_values[changes + 1], new_values[changes + 2] = id, text
      changes = changes + 2
      -- what was dirty is planned already
      if clean then saves[#saves + 1], saves[#saves + 2] = save_at, id end
    else
      text = 'RANGE:' .. value
    end
  end
  words[nth], reply[nth + 1] = text, answer or text
end
if plans[1] or saves[1] then
  _, wrong = ask('ZCARD', KEYS[3])
  if wrong then return wrong end
end

-- In this order since a crash may keep the first of these writes only: what is lost then was never counted twice, and
-- a counter is on the agenda before there is anything to do about it. Nothing below can fail but the first write, where
-- Redis takes none (OOM, READONLY, MISCONF).
if producer ~= '' then
  local last_call = ARGV[2] .. ' ' .. string.format('%.0f', now)
  redis.call('HSET', KEYS[4], producer, last_call .. ' ' .. table.concat(words, ' '))
end
for from = 1, #plans, 1000 do redis.call('ZADD', KEYS[3], part(plans, from)) end
for from = 1, #saves, 1000 do redis.call('ZADD', KEYS[3], 'LT', part(saves, from)) end
grow(KEYS[2], new_rows, #new_rows / 2)
grow(KEYS[1], new_values, seeded)
return reply
