-- cached_seed, revision 1
-- Brings counters that cached_incr or cached_get missed, and returns what each one's value is now.
--
-- KEYS
--   1 values        hash      id -> value; a counter is there while it has one; "=VALUE" until it is changed
--   2 rows          hash      id -> "BASE SAVED LINEAGE N USED [CLAIM AT]", or "ticket HEX16" before it is seeded
--   3 schedule      zset      id -> ms: when something is next to be done about it
-- ARGV
--   1 retain_ms     integer   a counter that is saved may be deleted when it was not changed for so long
--   2 now_ms        integer   "" for the server's clock; anything else is for tests
--   3 id, ticket, value, version  fours  what the primary has, read after the ticket was had; "-" for none; 1 to 1000
-- REPLIES
--   {"OK", word...}           for each the value, an integer, or a string where it is beyond 2^53; or MISS:ticket where
--                             another ticket is stored by now, or none (an empty one): what was read may be out of
--                             date, begin again
-- ERRORS
--   BADARG                    an argument is missing or wrong; nothing done
-- REPEAT  safe
-- SINCE   0.1.0

local ids, good = {}, #KEYS == 3 and #ARGV > 2 and #ARGV < 4003 and #ARGV % 4 == 2
for i = 3, good and #ARGV or 0, 4 do
  local id, ticket, value, version = unpack(ARGV, i, i + 3)
  ids[#ids + 1], good = id, good and id ~= '' and #id < 256 and #ticket == 16
    and (value == '-' or value:find('^%-?%d+$')) and (version == '-' or version:find('^%x+:%d+$'))
end
if not good then return redis.error_reply('BADARG expected 1 to 1000 times id, ticket, value and version') end

local time = redis.call('TIME')
local now = tonumber(ARGV[2]) or time[1] * 1000 + math.floor(time[2] / 1000)
local values, rows = redis.call('HMGET', KEYS[1], unpack(ids)), redis.call('HMGET', KEYS[2], unpack(ids))
local held, used, seeded = redis.call('HLEN', KEYS[1]), string.format('%.0f', now), {}

local reply, due, new_rows, new_values = { 'OK' }, {}, {}, {}
for i, id in ipairs(ids) do
  local ticket, base, version = unpack(ARGV, 4 * i, 4 * i + 2)
  local value, row = seeded[id] or values[i], rows[i] or ''
  -- who has the ticket that is stored read the row after the counter was missed: nothing was saved since
  if not value and row == 'ticket ' .. ticket then
    value = '=' .. (base == '-' and '0' or base)
    seeded[id], due[#due + 1], due[#due + 2] = value, now + ARGV[1], id
    new_rows[#new_rows + 1], new_rows[#new_rows + 2] = id, table.concat({ base, version, ticket, '0', used }, ' ')
    new_values[#new_values + 1], new_values[#new_values + 2] = id, value
  end
  local text = value and value:match('^=?(.*)') or 'MISS:' .. (row:match('^ticket (%x+)$') or '')
  local number = tonumber(text)
  reply[i + 1] = number and number > -2^53 and number < 2^53 and number or text
end

if due[1] then
  -- up to 512 fields Redis walks a hash as a list; a field longer than any id makes it a table
  local longer = held < 64 and held + #due / 2 >= 64 and string.rep(' ', 256)
  -- in this order since a crash may keep the first of these writes only: the schedule knows of all that is there
  redis.call('ZADD', KEYS[3], unpack(due))
  for i, fields in ipairs({ new_rows, new_values }) do
    redis.call('HSET', KEYS[3 - i], unpack(fields))
    if longer then redis.call('HSET', KEYS[3 - i], longer, '') end
    if longer then redis.call('HDEL', KEYS[3 - i], longer) end
  end
end
return reply
