-- cached_get, revision 1
-- Reads counters that have a base: base + batch + buffer. A read does not prolong their retention.
--
-- KEYS
--   1 base          hash      id -> what the row held when the counter was seeded or last saved; "ticket HEX16" before
--   2 buffer        hash      id -> pending delta
--   3 batch         hash      id -> delta
--   4 schedule      zset      id -> ms: when its base or ticket may be deleted
-- ARGV
--   1 ticket_ms     integer   how long a ticket is kept; "" or 0 to make none
--   2 now_ms        integer   "" for the server's clock; anything else is for tests
--   3 salt          string    random; tickets are made of it and the time, so that none is given twice
--   4 id            id        1 to 255 bytes; then the next one, up to 1000
-- REPLIES
--   {"OK", word...}           for each id its value, an integer; SUM:base:batch:buffer, to be added up by the caller,
--                             where Lua's numbers are not exact, beyond 2^53; or MISS:ticket where it has no base, with
--                             an empty ticket where none is stored and none was to be made
-- ERRORS
--   BADARG                    an argument is missing, or an id too long or empty; nothing done
-- REPEAT  safe
-- SINCE   0.1.0

local base_key, buffer, batch, schedule = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local fit = #KEYS == 4 and #ARGV > 3 and #ARGV < 1004
for i = 4, fit and #ARGV or 0 do fit = fit and ARGV[i] ~= '' and #ARGV[i] < 256 end
if not fit then return redis.error_reply('BADARG expected 4 keys, ticket_ms, now_ms, salt, and 1 to 1000 ids') end

local ticket_ms, time = tonumber(ARGV[1]) or 0, nil
local bases = redis.call('HMGET', base_key, unpack(ARGV, 4))
local waits, cut = redis.call('HMGET', buffer, unpack(ARGV, 4)), redis.call('HMGET', batch, unpack(ARGV, 4))

local reply, due, tickets = { 'OK' }, {}, {}
for i, base in ipairs(bases) do
  local id = ARGV[i + 3]
  local word
  if not base or base:find('^ticket ') then
    local ticket = base and base:sub(8) or ''
    if not base and ticket_ms > 0 then
      time = time or ARGV[2] ~= '' and { '0', ARGV[2] .. '000' } or redis.call('TIME')
      ticket = redis.sha1hex(table.concat({ base_key, ARGV[3], time[1], time[2] }, ' ')):sub(1, 16)
      tickets[#tickets + 1], tickets[#tickets + 2] = id, 'ticket ' .. ticket
      due[#due + 1], due[#due + 2] = time[1] * 1000 + math.floor(time[2] / 1000) + ticket_ms, id
    end
    word = 'MISS:' .. ticket
  else
    local in_flight, waiting = cut[i] or '0', waits[i] or '0'
    local size = math.abs(tonumber(base) or 1e99) + math.abs(tonumber(in_flight) or 1e99)
      + math.abs(tonumber(waiting) or 1e99)
    word = size < 2^53 and base + in_flight + waiting or table.concat({ 'SUM', base, in_flight, waiting }, ':')
  end
  reply[i + 1] = word
end

-- in this order since a crash may keep a part of these writes: the schedule has every counter that is there
if due[1] then
  redis.call('ZADD', schedule, unpack(due))
  redis.call('HSET', base_key, unpack(tickets))
end
return reply
