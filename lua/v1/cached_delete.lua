-- cached_delete, revision 1
-- Deletes the bases of counters that have nothing pending and are due, and tickets that have ended.
--
-- KEYS
--   1 base          hash      id -> what the row held when the counter was seeded or last saved; "ticket HEX16" before
--   2 buffer        hash      id -> pending delta
--   3 batch         hash      id -> delta
--   4 schedule      zset      id -> ms: when its base or ticket may be deleted
-- ARGV
--   1 retain_ms     integer   one that is kept is due again so much later, 1 or more
--   2 count         integer   how many at most where no ids are given, 1 to 1000
--   3 now_ms        integer   "" for the server's clock; anything else is for tests
--   4 [id]          id        the counters to be deleted, due or not, up to 1000; without ids those that are due
-- REPLIES
--   {"OK", next_ms, word...}  in how many ms the next one is due, an integer, 0 for at once, or "" where none is; then
--                             for each DELETED; KEPT:buffer or KEPT:batch, where something of it is pending; or GONE,
--                             it has no base
-- ERRORS
--   BADARG                    an argument is missing or wrong; nothing done
-- REPEAT  safe
-- SINCE   0.1.0

local base_key, buffer, batch, schedule = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local retain_ms, count = tonumber(ARGV[1]) or 0, tonumber(ARGV[2]) or 0
if #KEYS ~= 4 or #ARGV < 3 or #ARGV > 1003 or retain_ms < 1 or count < 1 or count > 1000 then
  return redis.error_reply('BADARG expected 4 keys, retain_ms, a count of 1 to 1000, now_ms, and up to 1000 ids')
end

local time = redis.call('TIME')
local now_ms = tonumber(ARGV[3]) or time[1] * 1000 + math.floor(time[2] / 1000)
local ids = { unpack(ARGV, 4) }
if not ids[1] then
  ids = redis.call('ZRANGEBYSCORE', schedule, '-inf', string.format('%.0f', now_ms), 'LIMIT', '0', ARGV[2])
end
-- Redis asks for one id at least
local bases = redis.call('HMGET', base_key, '', unpack(ids))
local waits, cut = redis.call('HMGET', buffer, '', unpack(ids)), redis.call('HMGET', batch, '', unpack(ids))
redis.call('ZCARD', schedule) -- like the reads above: a key of another type ends the script before anything is written

local reply, deleted, kept = { 'OK', '' }, {}, {}
for i, id in ipairs(ids) do
  local word = bases[i + 1] and 'DELETED' or 'GONE'
  if waits[i + 1] then
    word = 'KEPT:buffer'
  elseif cut[i + 1] then
    word = 'KEPT:batch'
  end
  if word:find('^KEPT') then
    kept[#kept + 1], kept[#kept + 2] = now_ms + retain_ms, id
  else
    deleted[#deleted + 1] = id
  end
  reply[i + 2] = word
end

-- deletes nothing: where memory is full a script may continue once it has written, and deleting must work there
redis.call('HDEL', base_key, '')
if kept[1] then redis.call('ZADD', schedule, 'XX', unpack(kept)) end
-- in this order since a crash may keep a part of these writes: the schedule has every counter that is there
if deleted[1] then
  redis.call('HDEL', base_key, unpack(deleted))
  redis.call('ZREM', schedule, unpack(deleted))
end
local next_one = redis.call('ZRANGE', schedule, '0', '0', 'WITHSCORES')
if next_one[2] then reply[2] = math.max(0, tonumber(next_one[2]) - now_ms) end
return reply
