-- cached_get, revision 1
-- Reads counters that have a base: base + batch + buffer. A read does not prolong their retention.
--
-- KEYS
--   1 base          hash      id -> "DUE_MS ROW", as cached_seed stores it, or "DUE_MS ticket
--                             HEX16" before that
--   2 buffer        hash      id -> pending delta
--   3 batch         hash      id -> delta
-- ARGV
--   1 ticket_ms     integer   how long a ticket is kept, below 10^12; "" or 0 to make none
--   2 now_ms        integer   "" for the server's clock; anything else is for tests
--   3 salt          string    random; tickets are made of it and the time, so that none is given
--                             twice
--   4 id            id        1 to 255 bytes; then the next one, up to 1000
-- REPLIES
--   {"OK", word...}           for each id its value, an integer; SUM:base:batch:buffer, to be added
--                             up by the caller, where Lua's numbers are not exact, beyond 2^53; or
--                             MISS:ticket where it has no base, with an empty ticket where none is
--                             stored and none was to be made
-- ERRORS
--   BADARG                    an argument is missing, or an id too long or empty; nothing done
-- REPEAT  safe
-- SINCE   0.1.0

local base_key, buffer, batch = KEYS[1], KEYS[2], KEYS[3]
local fit = #KEYS == 3 and #ARGV > 3 and #ARGV < 1004
fit = fit and ARGV[1]:find('^%d*$') and #ARGV[1] < 13
for i = 4, fit and #ARGV or 0 do fit = fit and ARGV[i] ~= '' and #ARGV[i] < 256 end
if not fit then
  return redis.error_reply('BADARG expected 3 keys, ticket_ms, now_ms, salt, and 1 to 1000 ids')
end

local ticket_ms, time = tonumber(ARGV[1]) or 0, nil
local bases = redis.call('HMGET', base_key, unpack(ARGV, 4))
local waits = redis.call('HMGET', buffer, unpack(ARGV, 4))
local cut = redis.call('HMGET', batch, unpack(ARGV, 4))

local reply, tickets = { 'OK' }, {}
for i, base in ipairs(bases) do
  local row = base and base:sub(15) or 'ticket '
  local word
  if row:find('^ticket ') then
    local ticket = row:sub(8)
    if not base and ticket_ms > 0 then
      time = time or ARGV[2] ~= '' and { '0', ARGV[2] .. '000' } or redis.call('TIME')
      ticket = redis.sha1hex(table.concat({ base_key, ARGV[3], time[1], time[2] }, ' ')):sub(1, 16)
      local due = string.format('%013.0f ', time[1] * 1000 + math.floor(time[2] / 1000) + ticket_ms)
      tickets[#tickets + 1], tickets[#tickets + 2] = ARGV[i + 3], due .. 'ticket ' .. ticket
    end
    word = 'MISS:' .. ticket
  else
    local in_flight, waiting = cut[i] or '0', waits[i] or '0'
    local size = math.abs(tonumber(row) or 1e99) + math.abs(tonumber(in_flight) or 1e99)
      + math.abs(tonumber(waiting) or 1e99)
    local parts = { 'SUM', row, in_flight, waiting }
    word = size < 2^53 and row + in_flight + waiting or table.concat(parts, ':')
  end
  reply[i + 1] = word
end

if tickets[1] then redis.call('HSET', base_key, unpack(tickets)) end
return reply
