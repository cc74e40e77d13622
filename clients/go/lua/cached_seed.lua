-- cached_seed, revision 1
-- Gives counters that cached_incr or cached_get missed their base.
--
-- KEYS
--   1 base          hash      id -> "DUE_MS ROW": when it may be deleted, in Unix milliseconds of
--                             13 digits, and what its row held when it was seeded or last saved;
--                             "DUE_MS ticket HEX16" before it is seeded
-- ARGV
--   1 retain_ms     integer   a counter with nothing pending may be deleted so long after it was
--                             seeded or saved, below 10^12
--   2 now_ms        integer   "" for the server's clock; anything else is for tests
--   3 id, ticket, value  triples  what the primary's row holds, read after the ticket was received;
--                                 1 to 1000
-- REPLIES
--   {"OK", word...}           for each SEEDED; HELD, it has a base already; or MISS, another ticket
--                             is stored, or none: what was read may be out of date, begin again
-- ERRORS
--   BADARG                    an argument is missing or wrong; nothing done
-- REPEAT  safe: a repeat is HELD
-- SINCE   0.1.0

local base_key, ids = KEYS[1], {}
local fit = #KEYS == 1 and #ARGV > 2 and #ARGV < 3003 and #ARGV % 3 == 2
fit = fit and ARGV[1]:find('^%d+$') and #ARGV[1] < 13
for i = 3, fit and #ARGV or 0, 3 do
  local id, ticket, value = unpack(ARGV, i, i + 2)
  ids[#ids + 1] = id
  fit = fit and id ~= '' and #id < 256 and #ticket == 16 and value:find('^%-?%d+$')
end
if not fit then
  return redis.error_reply('BADARG expected base, retain_ms, now_ms, and 1 to 1000 triples')
end

local time = redis.call('TIME')
local now_ms = tonumber(ARGV[2]) or time[1] * 1000 + math.floor(time[2] / 1000)
local due = string.format('%013.0f ', now_ms + ARGV[1])
local bases, held = redis.call('HMGET', base_key, unpack(ids)), redis.call('HLEN', base_key)

local reply, seeds, seeded = { 'OK' }, {}, {}
for i, id in ipairs(ids) do
  local ticket, value = unpack(ARGV, 3 * i + 1, 3 * i + 2)
  local row, word = seeded[id] or bases[i] and bases[i]:sub(15), 'MISS'
  local may_seed = row and row:find('^ticket ')
  -- the holder of this ticket read the row after the counter was missed: nothing was saved since
  if row ~= 'ticket ' .. ticket then may_seed = false end -- guard: Ticket
  if may_seed then
    word, seeded[id] = 'SEEDED', value
    seeds[#seeds + 1], seeds[#seeds + 2] = id, due .. value
  elseif row and not row:find('^ticket ') then
    word = 'HELD'
  end
  reply[i + 1] = word
end

if seeds[1] then
  redis.call('HSET', base_key, unpack(seeds))
  -- what has only tickets counts as well, so a call may have come from far below
  if held >= 64 and held < 512 then -- lua/README.md, "Small hashes"
    redis.call('HSET', base_key, '', (' '):rep(256))
    redis.call('HDEL', base_key, '')
  end
end
return reply
