-- cached_rebase, revision 1
-- Puts what is not saved yet on top of a row that somebody else wrote.
--
-- KEYS
--   1 values        hash      id -> value; a counter is there while it has one; "=VALUE" until it is changed
--   2 rows          hash      id -> "BASE SAVED LINEAGE N USED [CLAIM AT]", or "ticket HEX16" before it is seeded
--   3 schedule      zset      id -> ms: when something is next to be done about it
-- ARGV
--   1 retain_ms     integer   a counter that is saved may be deleted when it was not changed for so long
--   2 now_ms        integer   "" for the server's clock; anything else is for tests
--   3 id, version, value, saved  fours  version: of the claim that met another row; value, saved: what the row has by
--                             now, and the version it was saved in, "-" for none; 1 to 1000 fours
-- REPLIES
--   {"OK", word...}           for each OK: its value is the row's plus what was counted since the last save, and it is
--                             not claimed any more; or STALE: not claimed in that version any more, nothing done; or
--                             RANGE: that sum is no i64, nothing done
-- ERRORS
--   BADARG                    an argument is missing or wrong; nothing done
-- REPEAT  safe: a repeat finds it STALE
-- SINCE   0.1.0

local ids, good = {}, #KEYS == 3 and #ARGV > 2 and #ARGV < 4003 and #ARGV % 4 == 2
for i = 3, good and #ARGV or 0, 4 do
  local id, value, saved = ARGV[i], ARGV[i + 2], ARGV[i + 3]
  ids[#ids + 1], good = id, good and id ~= '' and #id < 256
    and (value == '-' or value:find('^%-?%d+$')) and (saved == '-' or saved:find('^%x+:%d+$'))
end
if not good then return redis.error_reply('BADARG expected 1 to 1000 times id, version, value and saved') end

local time, retain_ms = redis.call('TIME'), ARGV[1] + 0
local now = tonumber(ARGV[2]) or time[1] * 1000 + math.floor(time[2] / 1000)
local values, rows = redis.call('HMGET', KEYS[1], unpack(ids)), redis.call('HMGET', KEYS[2], unpack(ids))
redis.call('ZCARD', KEYS[3]) -- as the reads above: a key of another type ends the script before anything is written

-- an i64 as 10^9 times the first number plus the second one, both with its sign; no row is as good as 0
local function halves(text)
  local digits, sign = text:match('%d*$'), text:find('^%-') and -1 or 1
  return sign * (tonumber(digits:sub(1, -10)) or 0), sign * (tonumber(digits:sub(-9)) or 0)
end
-- the way back, also with halves that were added up; nothing where that is no i64
local function whole(high, low)
  high, low = high + math.floor(low / 1e9), low % 1e9
  if high > 9223372036 or high == 9223372036 and low > 854775807 then return nil end
  if high < -9223372037 or high == -9223372037 and low < 145224192 then return nil end
  local sign = high < 0 and '-' or ''
  if high < 0 then high, low = low > 0 and -high - 1 or -high, (1e9 - low) % 1e9 end
  return sign .. string.format('%.0f%09.0f', high, low):gsub('^0+(%d)', '%1')
end

local reply, due, new_rows, new_values = { 'OK' }, {}, {}, {}
for i, id in ipairs(ids) do
  local version, row_value, row_version = unpack(ARGV, 4 * i, 4 * i + 2)
  local base, _, lineage, n, used, claim =
    (rows[i] or ''):match('^([-%d]%d*) ([-=:%x]+) (%x+) (%d+) (%d+) (%-?%d+) (%d+)$')
  local value = values[i] and values[i]:match('^=?(%-?%d+)$')
  reply[i + 1] = 'STALE'
  if value and claim and version == lineage .. ':' .. n then
    local high, low = halves(value)
    local base_high, base_low = halves(base)
    local row_high, row_low = halves(row_value)
    local sum = whole(high - base_high + row_high, low - base_low + row_low)
    reply[i + 1] = sum and 'OK' or 'RANGE'
    if sum then
      local is_clean = sum == (row_value == '-' and '0' or row_value)
      new_rows[#new_rows + 1] = id
      new_rows[#new_rows + 1] = table.concat({ row_value, row_version, lineage, n, used }, ' ')
      new_values[#new_values + 1], new_values[#new_values + 2] = id, is_clean and '=' .. sum or sum
      due[#due + 1], due[#due + 2] = is_clean and math.max(now, used + retain_ms) or now, id
    end
  end
end

-- deletes nothing: where memory is full a script may go on once it has written, and draining must work there
redis.call('HDEL', KEYS[2], '')
-- rows first: half of this, as a crash can leave it, loses what somebody else wrote and counts nothing twice
if due[1] then
  redis.call('HSET', KEYS[2], unpack(new_rows))
  redis.call('HSET', KEYS[1], unpack(new_values))
  redis.call('ZADD', KEYS[3], unpack(due))
end
return reply
