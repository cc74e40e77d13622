-- cached_get, revision 1
-- Reads counters that are there, and seeds those that are handed in.
--
-- KEYS
--   1 values        hash      id -> value; a counter is there while it has one
--   2 rows          hash      id -> "BASE SAVED LINEAGE N USED [CLAIM AT]", or "ticket HEX16" before it is seeded
--   3 agenda        zset      id -> ms: when something is next to be done about it
-- ARGV
--   1 ticket        hex16     random, a new one for each send: for the counters that are not there; "" to make none
--   2 ticket_ms     integer   how long a ticket is kept
--   3 retain_ms     integer   a counter that is saved may be deleted when it was not changed for so long
--   4 now_ms        integer   "" for the server's clock; anything else is for tests
--   5 seeds         integer   how many counters are handed in
--   6 id, ticket, value, version  fours  so many: what the primary has, read after the ticket was had; "-" for none
--   7 id            id        1 to 255 bytes of UTF-8; then the next one; none is needed where there are seeds
-- REPLIES
--   {"OK", word...}           for each id its value, an integer, or a string where it is beyond 2^53; or MISS:ticket
--                             where the counter is not there, with an empty ticket where there is none and none was
--                             to be made. A read does not prolong the stay
-- ERRORS
--   BADARG                    an argument is missing or wrong; nothing done
--   BADKEY                    a key is misspelt or holds another type; nothing done
-- REPEAT  safe
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

local function word(text)
  local number = tonumber(text)
  return number and is_exact(number) and number or text
end

local wrong = bad_key('values', 'rows', 'agenda')
if wrong then return wrong end
if #ARGV < 6 then
  return redis.error_reply('BADARG ' .. #ARGV .. ' arguments, expected 5, then fours of seeds and ids')
end
local ticket = ARGV[1]
if ticket ~= '' and not is_random(ticket) then
  return redis.error_reply('BADARG ticket is ' .. shown(ticket) .. ', expected 16 hexadecimal digits or ""')
end
wrong = bad_count('ticket_ms', ARGV[2]) or bad_count('retain_ms', ARGV[3])
  or (ARGV[4] ~= '' and bad_count('now_ms', ARGV[4])) or bad_count('seeds', ARGV[5])
if wrong then return wrong end
local first = 6 + 4 * tonumber(ARGV[5])
if #ARGV < first - 1 then
  return redis.error_reply('BADARG ' .. #ARGV .. ' arguments do not fit ' .. ARGV[5] .. ' seeds and ids')
end

-- the ids of the call, each once, and where each stands among them
local ids, at, distinct = {}, {}, 0
local function name(id)
  if not at[id] then
    distinct = distinct + 1
    ids[distinct], at[id] = id, distinct
  end
end

for i = 6, first - 1, 4 do
  local bad = bad_seed(ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3])
  if bad then return redis.error_reply('BADARG seed ' .. (i - 2) / 4 .. ': ' .. bad) end
  name(ARGV[i])
end
for i = first, #ARGV do
  local bad = bad_id(ARGV[i])
  if bad then return redis.error_reply('BADARG id ' .. i - first + 1 .. ': ' .. bad) end
  name(ARGV[i])
end

local clock = redis.call('TIME')
local now = ARGV[4] ~= '' and tonumber(ARGV[4]) or clock[1] * 1000 + math.floor(clock[2] / 1000)
local values, rows, _
values, wrong = ask_all(KEYS[1], ids)
if wrong then return wrong end
rows, wrong = ask_all(KEYS[2], ids)
if wrong then return wrong end

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

for i = 6, first - 1, 4 do seed(ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[3]) end
local reply = { 'OK' }
for i = first, #ARGV do
  local id = ARGV[i]
  local value, row = values[at[id]], rows[at[id]]
  if not value then
    local held = row and row:match('^ticket (%x+)$')
    if not held and ticket ~= '' then plan(id, ARGV[2], 'ticket ' .. ticket) end
    value = 'MISS:' .. (held or ticket)
  end
  reply[i - first + 2] = word(value)
end
if plans[1] then
  _, wrong = ask('ZCARD', KEYS[3])
  if wrong then return wrong end
end

-- in this order since a crash may keep the first of these writes only: the agenda knows of all that is there
for from = 1, #plans, 1000 do redis.call('ZADD', KEYS[3], part(plans, from)) end
grow(KEYS[2], new_rows, #new_rows / 2)
grow(KEYS[1], new_values, #new_values / 2)
return reply
