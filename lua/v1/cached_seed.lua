-- cached_seed, revision 1
-- Gives counters that cached_incr or cached_get missed their base.
--
-- KEYS
--   1 calls         hash      of the partition's home; =no_row, what a counter without a row is:
--                             "0", or "refused" where only the application makes rows; =database
--   2 base          hash      id -> "AT_MS ROW": when it was seeded or last saved, in Unix
--                             milliseconds of 13 digits, and what its row held then; "AT_MS ticket
--                             HEX16" before it is seeded, since its last MISS
-- ARGV
--   1 now_ms        integer   "" for the server's clock; anything else is for tests
--   2 database      string    id of the database that the rows were read from; "" for any
--   3 id, ticket, value  triples  what the primary's row holds, read after the ticket was received;
--                                 "-" without a row; 1 to 1000
-- REPLIES
--   {"OK", word...}           for each SEEDED; HELD, it has a base already; NOROW, only the
--                             application makes its row; BEYOND, the value is not below 2^53 in
--                             size; or MISS, another ticket is stored, or none: what was read may
--                             be out of date, begin again
--   {"MISMATCH", database}    the family belongs to another database; nothing done
-- ERRORS
--   BADARG                    an argument is missing or wrong; nothing done
-- REPEAT  safe: a repeat is HELD
-- SINCE   0.1.0
-- CALLER  Partition::seed in src/scripts/partition/cached.rs
-- VECTORS lua/vectors/cached_seed.json

local calls, base_key, test_ms, database = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
local ids, tickets, values = {}, {}, {}
local fits = #KEYS == 2 and #ARGV > 2 and #ARGV < 3003 and #ARGV % 3 == 2
for i = 3, fits and #ARGV or 0, 3 do
  local id, ticket, value = unpack(ARGV, i, i + 2)
  ids[#ids + 1], tickets[#tickets + 1], values[#values + 1] = id, ticket, value
  fits = fits and id ~= '' and #id < 256 and #ticket == 16
  fits = fits and (value == '-' or value:find('^%-?%d+$'))
end
if not fits then
  return redis.error_reply('BADARG expected calls and base, now_ms, database, and 1 to 1000 '
    .. 'triples')
end

-- check that the rows are of the family's database
local no_row, known_database = unpack(redis.call('HMGET', calls, '=no_row', '=database'))
local own_database = known_database or ''
local is_foreign = own_database ~= '' and database ~= '' and own_database ~= database
if is_foreign then return { 'MISMATCH', own_database } end -- guard: Database

local time = redis.call('TIME')
local now_ms = tonumber(test_ms) or time[1] * 1000 + math.floor(time[2] / 1000)
local stored_at = string.format('%013.0f ', now_ms)
local bases, held = redis.call('HMGET', base_key, unpack(ids)), redis.call('HLEN', base_key)

-- decide which counters get their base
local reply, seeds, seeded = { 'OK' }, {}, {}
for i, id in ipairs(ids) do
  local ticket, value = tickets[i], values[i]
  -- a base is 13 digits of the time when it was stored, a space, and the row or a ticket
  local row, word = seeded[id] or bases[i] and bases[i]:sub(15), 'MISS'
  local may_seed = row and row:find('^ticket ')
  -- Only this ticket proves that its holder read the row after the counter was missed, and that
  -- nothing was saved since.
  if row ~= 'ticket ' .. ticket then may_seed = false end -- guard: Ticket
  local is_refused = value == '-' and no_row == 'refused'
  if value == '-' then value = '0' end
  if may_seed and is_refused then
    word = 'NOROW'
  elseif may_seed and math.abs(tonumber(value)) >= 2^53 then
    word = 'BEYOND'
  elseif may_seed then
    word, seeded[id] = 'SEEDED', value
    seeds[#seeds + 1], seeds[#seeds + 2] = id, stored_at .. value
  elseif row and not row:find('^ticket ') then
    word = 'HELD'
  end
  reply[i + 1] = word
end

-- store the bases
if seeds[1] then
  redis.call('HSET', base_key, unpack(seeds))
  -- lua/README.md, "Small hashes". The 64th field may have been a ticket, and a call stores many of
  -- them at once. So the hash is changed at any length at which it may still be a list.
  if held >= 64 and held < 512 then
    redis.call('HSET', base_key, '', (' '):rep(256))
    redis.call('HDEL', base_key, '')
  end
end
return reply
