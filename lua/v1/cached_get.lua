-- cached_get, revision 1
-- Reads counters that are there; a read does not prolong their retention.
--
-- KEYS
--   1 values        hash      id -> value; a counter is there while it has one; "=VALUE" until it is changed
--   2 rows          hash      id -> "BASE SAVED LINEAGE N USED [CLAIM AT]", or "ticket HEX16" before it is seeded
--   3 schedule      zset      id -> ms: when something is next to be done about it
-- ARGV
--   1 ticket_ms     integer   how long a ticket is kept; "" or 0 to make none
--   2 now_ms        integer   "" for the server's clock; anything else is for tests
--   3 salt          string    random; tickets are made of it and the time, so that none is ever given out twice
--   4 id            id        1 to 255 bytes; then the next one, up to 1000
-- REPLIES
--   {"OK", word...}           for each id its value, an integer, or a string where it is beyond 2^53; or MISS:ticket
--                             where the counter is not there, with an empty ticket where there is none and none was
--                             to be made
-- ERRORS
--   BADARG                    an argument is missing, or an id too long or empty; nothing done
-- REPEAT  safe
-- SINCE   0.1.0

local good = #KEYS == 3 and #ARGV > 3 and #ARGV < 1004
for i = 4, good and #ARGV or 0 do good = good and ARGV[i] ~= '' and #ARGV[i] < 256 end
if not good then return redis.error_reply('BADARG expected 3 keys, ticket_ms, now_ms, salt, and 1 to 1000 ids') end

local ticket_ms, time, due, rows = tonumber(ARGV[1]) or 0, nil, {}, {}
local reply = redis.call('HMGET', KEYS[1], unpack(ARGV, 4))
for i, value in ipairs(reply) do
  local id = ARGV[i + 3]
  local ticket = not value and (redis.call('HGET', KEYS[2], id) or ''):match('^ticket (%x+)$')
  if not value and not ticket and ticket_ms > 0 then
    time = time or ARGV[2] == '' and redis.call('TIME') or { '0', ARGV[2] .. '000' }
    ticket = redis.sha1hex(table.concat({ KEYS[1], ARGV[3], time[1], time[2] }, ' ')):sub(1, 16)
    due[#due + 1], due[#due + 2] = time[1] * 1000 + math.floor(time[2] / 1000) + ticket_ms, id
    rows[#rows + 1], rows[#rows + 2] = id, 'ticket ' .. ticket
  end
  local text = value and value:match('^=?(.*)') or 'MISS:' .. (ticket or '')
  local number = tonumber(text)
  reply[i] = number and number > -2^53 and number < 2^53 and number or text
end

-- in this order since a crash may keep the first of these writes only: the schedule knows of all that is there
if due[1] then
  redis.call('ZADD', KEYS[3], unpack(due))
  redis.call('HSET', KEYS[2], unpack(rows))
end
return { 'OK', unpack(reply) }
