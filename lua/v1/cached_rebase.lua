-- cached_rebase, revision 1
-- Puts what is not saved yet on top of a row that somebody else wrote.
--
-- KEYS
--   1 values        hash      id -> value; a counter is there while it has one
--   2 rows          hash      id -> "BASE SAVED LINEAGE N USED [CLAIM AT]", or "ticket HEX16" before it is seeded
--   3 agenda        zset      id -> ms: when something is next to be done about it
-- ARGV
--   1 retain_ms     integer   a counter that is saved may be deleted when it was not changed for so long
--   2 now_ms        integer   "" for the server's clock; anything else is for tests
--   3 id, version, value, saved  fours  version: of the claim that met another row; value, saved: what the row has by
--                             now, and the version it was saved in, "-" for none; one four or more
-- REPLIES
--   {"OK", word...}           for each OK: its value is the row's plus what was counted since the last save, and it is
--                             not claimed any more; or STALE: not claimed in that version any more, nothing done; or
--                             RANGE: that sum leaves i64, nothing done
-- ERRORS
--   BADARG                    an argument is missing or wrong; nothing done
--   BADKEY                    a key is misspelt or holds another type; nothing done
-- REPEAT  safe: a repeat finds it STALE
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

-- Lua passes on only so many arguments at once
local function part(list, from) return unpack(list, from, math.min(from + 999, #list)) end

local function ask_all(key, ids)
  local found, wrong = ask('HMGET', key, part(ids, 1))
  for from = 1001, wrong and 0 or #ids, 1000 do
    for i, answer in ipairs(redis.call('HMGET', key, part(ids, from))) do found[from + i - 1] = answer end
  end
  return found, wrong
end

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

-- no row in the database is the same as a row of 0
local function is_clean(value, row)
  return row:find(value .. ' ', 1, true) == 1 or (value == '0' and row:find('- ', 1, true) == 1)
end

-- "BASE SAVED LINEAGE N USED [CLAIM AT]"; nothing where it has another shape
local function parsed(row)
  local base, saved, lineage, n, used, rest = (row or ''):match('^([-%d]%d*) ([-=:%x]+) (%x+) (%d+) (%d+)(.*)$')
  local claim, at = (rest or ''):match('^ (%-?%d+) (%d+)$')
  if rest ~= '' and not claim then return nil end
  return { base = base, saved = saved, lineage = lineage, n = n, used = used, claim = claim, at = at }
end

local function unparsed(row)
  local fields = { row.base, row.saved, row.lineage, row.n, row.used, row.claim, row.at }
  return table.concat(fields, ' ')
end

local wrong = bad_key('values', 'rows', 'agenda')
if wrong then return wrong end
if #ARGV < 6 or #ARGV % 4 ~= 2 then
  return redis.error_reply('BADARG ' .. #ARGV .. ' arguments, expected 2 and then id, version, value and saved')
end
wrong = bad_count('retain_ms', ARGV[1]) or (ARGV[2] ~= '' and bad_count('now_ms', ARGV[2]))
if wrong then return wrong end
local retain_ms, ids = tonumber(ARGV[1]), {}
for i = 3, #ARGV, 4 do
  local id, version = ARGV[i], ARGV[i + 1]
  local bad = (id == '' or #id > 255) and 'id has ' .. #id .. ' bytes, expected 1 to 255'
    or not is_version(version) and 'version of the claim is ' .. shown(version) .. ', expected LINEAGE:N'
    or bad_row(ARGV[i + 2], ARGV[i + 3])
  if bad then return redis.error_reply('BADARG row ' .. (i + 1) / 4 .. ': ' .. bad) end
  ids[#ids + 1] = id
end

local clock = redis.call('TIME')
local now = ARGV[2] ~= '' and tonumber(ARGV[2]) or clock[1] * 1000 + math.floor(clock[2] / 1000)
local values, rows, _
values, wrong = ask_all(KEYS[1], ids)
if wrong then return wrong end
rows, wrong = ask_all(KEYS[2], ids)
if wrong then return wrong end
_, wrong = ask('ZCARD', KEYS[3])
if wrong then return wrong end

-- the row's value and what was counted on top of the base
local function moved(value, base, row_value)
  local high, low = halves(value)
  local base_high, base_low = halves(base == '-' and '0' or base)
  local row_high, row_low = halves(row_value == '-' and '0' or row_value)
  return decimal(high - base_high + row_high, low - base_low + row_low)
end
local reply, plans, new_rows, new_values = { 'OK' }, {}, {}, {}
for i, id in ipairs(ids) do
  local version, row_value, row_version = ARGV[4 * i], ARGV[4 * i + 1], ARGV[4 * i + 2]
  local value, row = values[i], parsed(rows[i])
  local word = 'STALE'
  if value and row and row.claim and version == row.lineage .. ':' .. row.n and value:find('^%-?%d+$') then
    local result = moved(value, row.base, row_value)
    word = result and 'OK' or 'RANGE'
    if result then
      row.base, row.saved, row.claim, row.at = row_value, row_version, nil, nil
      local new_row = unparsed(row)
      new_rows[#new_rows + 1], new_rows[#new_rows + 2] = id, new_row
      new_values[#new_values + 1], new_values[#new_values + 2] = id, result
      local at = is_clean(result, new_row) and math.max(now, row.used + retain_ms) or now
      plans[#plans + 1], plans[#plans + 2] = string.format('%.0f', at), id
    end
  end
  reply[i + 1] = word
end

-- deletes nothing: where memory is full a script may go on once it has written, and draining must work there
redis.call('HDEL', KEYS[2], '')
-- rows first: half of this, as a crash can leave it, loses what somebody else wrote and counts nothing twice
for from = 1, #new_rows, 1000 do redis.call('HSET', KEYS[2], part(new_rows, from)) end
for from = 1, #new_values, 1000 do redis.call('HSET', KEYS[1], part(new_values, from)) end
for from = 1, #plans, 1000 do redis.call('ZADD', KEYS[3], part(plans, from)) end
return reply
