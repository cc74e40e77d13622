-- cached_get, revision 1
-- Reads counters that have a base: base + batch + buffer. A read does not prolong their retention.
--
-- KEYS
--   1 base          hash      id -> "AT_MS ROW", as cached_seed stores it, or "AT_MS ticket
--                             HEX16" before that
--   2 buffer        hash      id -> pending delta
--   3 batch         hash      id -> delta
--   4 meta          hash      incarnation, database
-- ARGV
--   1 tickets       integer   1 to make tickets, 0 to make none
--   2 now_ms        integer   "" for the server's clock; anything else is for tests
--   3 salt          string    random; tickets are made of it and the time, so that none is given
--                             twice
--   4 database      string    id of the database that the caller reads rows from; "" for any
--   5 id            id        1 to 255 bytes; then the next one, up to 1000
-- REPLIES
--   {"OK", word...}           for each id its value, an integer; MISS:ticket where it has no base,
--                             with an empty ticket where none is stored and none was to be made;
--                             BEYOND where the value is not below 2^53 in size; BADSTATE where
--                             what is stored is not an integer; or UNCONFIGURED for all if meta has
--                             no incarnation: Redis was emptied and nothing is pending, or a proxy
--                             that shards keys sent the call to another server
--   {"MISMATCH", database}    the partition belongs to another database; nothing done
-- ERRORS
--   BADARG                    an argument is missing, or an id too long or empty; nothing done
-- REPEAT  safe
-- SINCE   0.1.0
-- CALLER  Partition::values_with in src/scripts/partition/cached.rs
-- VECTORS lua/vectors/cached_get.json

local base_key, buffer, batch, meta = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local makes_tickets, test_ms, salt, database = ARGV[1] == '1', ARGV[2], ARGV[3], ARGV[4]
local fits = #KEYS == 4 and #ARGV > 4 and #ARGV < 1005
fits = fits and (makes_tickets or ARGV[1] == '0')
for i = 5, fits and #ARGV or 0 do fits = fits and ARGV[i] ~= '' and #ARGV[i] < 256 end
if not fits then
  return redis.error_reply('BADARG expected 4 keys; tickets of 0 or 1, now_ms, salt, database, '
    .. 'and 1 to 1000 ids')
end

-- read the base of each id, and what it has pending
local ids = { unpack(ARGV, 5) }
local bases = redis.call('HMGET', base_key, unpack(ids))
local waits = redis.call('HMGET', buffer, unpack(ids))
local cut = redis.call('HMGET', batch, unpack(ids))
local incarnation, own_database = unpack(redis.call('HMGET', meta, 'incarnation', 'database'))
local is_foreign = own_database and database ~= '' and own_database ~= database
if is_foreign then return { 'MISMATCH', own_database } end -- guard: Database
local reply = { 'OK' }
if not incarnation then
  for i = 1, #ids do reply[i + 1] = 'UNCONFIGURED' end
  return reply
end

-- compute the value of each id, or make a ticket
local nan, limit, time, tickets = 0 / 0, 2^53, nil, {}
for i, base in ipairs(bases) do
  -- 13 digits of the time when it was stored, a space, and the row or a ticket
  local row = base and base:sub(15) or 'ticket '
  local word
  if row:find('^ticket ') then
    local ticket = row:sub(#'ticket ' + 1)
    if not base and makes_tickets then
      time = time or test_ms ~= '' and { '0', test_ms .. '000' } or redis.call('TIME')
      local seed = table.concat({ base_key, salt, time[1], time[2] }, ' ')
      local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
      ticket = redis.sha1hex(seed):sub(1, 16)
      tickets[#tickets + 1] = ids[i]
      tickets[#tickets + 1] = string.format('%013.0f ', now_ms) .. 'ticket ' .. ticket
    end
    word = 'MISS:' .. ticket
  else
    local settled = (tonumber(row) or nan) + (tonumber(cut[i] or 0) or nan)
    local waiting = tonumber(waits[i] or 0) or nan
    local value = settled + waiting
    -- The sum is exact if it and each part of it are below 2^53 in size.
    local size = math.max(math.abs(settled), math.abs(waiting), math.abs(value))
    word = value % 1 ~= 0 and 'BADSTATE' or size >= limit and 'BEYOND' or value
  end
  reply[i + 1] = word
end

if tickets[1] then redis.call('HSET', base_key, unpack(tickets)) end
return reply
