-- cached_seed, revision 1
-- Gives counters that cached_incr or cached_get missed their base.
--
-- KEYS
--   1 base          hash      id -> what the row held when the counter was seeded or last saved; "ticket HEX16" before
--   2 schedule      zset      id -> ms: when its base or ticket may be deleted
-- ARGV
--   1 retain_ms     integer   a counter with nothing pending may be deleted so long after it was seeded or saved
--   2 now_ms        integer   "" for the server's clock; anything else is for tests
--   3 id, ticket, value  triples  what the primary's row holds, read after the ticket was received; 1 to 1000
-- REPLIES
--   {"OK", word...}           for each SEEDED; HELD, it has a base already; or MISS, another ticket is stored, or none:
--                             what was read may be out of date, begin again
-- ERRORS
--   BADARG                    an argument is missing or wrong; nothing done
-- REPEAT  safe: a repeat is HELD
-- SINCE   0.1.0

local base_key, schedule = KEYS[1], KEYS[2]
local ids, fit = {}, #KEYS == 2 and #ARGV > 2 and #ARGV < 3003 and #ARGV % 3 == 2
for i = 3, fit and #ARGV or 0, 3 do
  local id, ticket, value = unpack(ARGV, i, i + 2)
  ids[#ids + 1] = id
  fit = fit and id ~= '' and #id < 256 and #ticket == 16 and value:find('^%-?%d+$')
end
if not fit then return redis.error_reply('BADARG expected 2 keys, retain_ms, now_ms, and 1 to 1000 triples') end

local time = redis.call('TIME')
local now_ms = tonumber(ARGV[2]) or time[1] * 1000 + math.floor(time[2] / 1000)
local bases, held = redis.call('HMGET', base_key, unpack(ids)), redis.call('HLEN', base_key)
redis.call('ZCARD', schedule) -- like the reads above: a key of another type ends the script before anything is written

local reply, due, seeds, seeded = { 'OK' }, {}, {}, {}
for i, id in ipairs(ids) do
  local ticket, value = unpack(ARGV, 3 * i + 1, 3 * i + 2)
  local base, word = seeded[id] or bases[i], 'MISS'
  if base == 'ticket ' .. ticket then
    -- the holder of this ticket read the row after the counter was missed: nothing was saved since
    word, seeded[id] = 'SEEDED', value
    seeds[#seeds + 1], seeds[#seeds + 2] = id, value
    due[#due + 1], due[#due + 2] = now_ms + ARGV[1], id
  elseif base and not base:find('^ticket ') then
    word = 'HELD'
  end
  reply[i + 1] = word
end

if due[1] then
  -- in this order since a crash may keep a part of these writes: the schedule has every counter that is there
  redis.call('ZADD', schedule, unpack(due))
  redis.call('HSET', base_key, unpack(seeds))
  -- up to 512 fields Redis walks a hash as a list; a field longer than any id makes it a table
  if held < 64 and held + #due / 2 >= 64 then
    local longer = string.rep(' ', 256)
    redis.call('HSET', base_key, longer, '')
    redis.call('HDEL', base_key, longer)
  end
end
return reply
