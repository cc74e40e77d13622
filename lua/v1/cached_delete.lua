-- cached_delete, revision 1
-- Deletes the bases of counters that have nothing pending and are due, and tickets that have ended.
--
-- KEYS
--   1 calls         hash      of the partition's home; =retain, how many ms after it was seeded or
--                             last saved a counter is due; a ticket is so 30 s after its last MISS
--   2 base          hash      id -> "AT_MS ROW", as cached_seed stores it, or "AT_MS ticket
--                             HEX16" before that
--   3 buffer        hash      id -> pending delta
--   4 batch         hash      id -> delta
-- ARGV
--   1 cursor        string    "0" to look for those that are due from the beginning, then what the
--                             last reply contains
--   2 count         integer   about how many to look at, 1 to 1000
--   3 now_ms        integer   "" for the server's clock; anything else is for tests
--   4 [id]          id        the counters to be deleted, due or not, up to 1000, instead of
--                             looking for them
-- REPLIES
--   {"OK", cursor, word...}   where to go on, "0" where all have been looked at; and for each id,
--                             or each that was due, DELETED; KEPT:buffer or KEPT:batch, where
--                             something of it is pending; or GONE, it has no base
-- ERRORS
--   BADARG                    an argument is missing or wrong; nothing done
-- REPEAT  safe
-- SINCE   0.1.0
-- CALLER  Partition::delete_some in src/scripts/partition/cached.rs
-- VECTORS lua/vectors/cached_delete.json

local calls, base_key, buffer, batch = unpack(KEYS)
local cursor, count_text, test_ms = ARGV[1], ARGV[2], ARGV[3]
local count = tonumber(count_text) or 0
local fits = #KEYS == 4 and #ARGV >= 3 and #ARGV <= 1003 and count >= 1 and count <= 1000
if not fits or not cursor:find('^%d+$') then
  return redis.error_reply('BADARG expected 4 keys, a cursor, a count of 1 to 1000, now_ms, and '
    .. 'up to 1000 ids')
end

-- find the counters to delete, and which of them have a base
local time = redis.call('TIME')
local now_ms = tonumber(test_ms) or time[1] * 1000 + math.floor(time[2] / 1000)
local ids, has_base = { unpack(ARGV, 4) }, {}
if ids[1] then
  for i, base in ipairs(redis.call('HMGET', base_key, unpack(ids))) do has_base[ids[i]] = base end
else
  local retain_ms = tonumber(redis.call('HGET', calls, '=retain')) or 0
  local next_cursor, page = unpack(redis.call('HSCAN', base_key, cursor, 'COUNT', count_text))
  cursor = next_cursor
  for i = 1, #page, 2 do
    local id, base = page[i], page[i + 1]
    -- 13 digits of the time when it was stored, a space, and the row or a ticket
    local stored_at, is_ticket = tonumber(base:sub(1, 13)) or 0, base:find('ticket', 15, true)
    local is_due = stored_at + (is_ticket and 30000 or retain_ms) <= now_ms
    if is_due then ids[#ids + 1], has_base[id] = id, true end
  end
end

-- Decide which of them have anything pending. Redis asks for one id at least, so the ids follow
-- that of no counter.
local reply, deleted = { 'OK', cursor }, {}
local waits = redis.call('HMGET', buffer, '', unpack(ids))
local cut = redis.call('HMGET', batch, '', unpack(ids))
for i, id in ipairs(ids) do
  local kept
  if cut[i + 1] then kept = 'KEPT:batch' end
  if waits[i + 1] then kept = 'KEPT:buffer' end -- guard: Clean
  if not kept then deleted[#deleted + 1] = id end
  reply[#reply + 1] = kept or has_base[id] and 'DELETED' or 'GONE'
end
if deleted[1] then redis.call('HDEL', base_key, unpack(deleted)) end
return reply
