-- cached_saved, revision 1
-- Marks counters as saved, if they are still claimed in that version.
--
-- KEYS
--   1 values        hash      id -> value; a counter is there while it has one; "=VALUE" until it is changed
--   2 rows          hash      id -> "BASE SAVED LINEAGE N USED [CLAIM AT]", or "ticket HEX16" before it is seeded
--   3 schedule      zset      id -> ms: when something is next to be done about it
-- ARGV
--   1 save_after_ms  integer  a save is due so long after a change
--   2 retain_ms      integer  a counter that is saved may be deleted when it was not changed for so long
--   3 now_ms         integer  "" for the server's clock; anything else is for tests
--   4 id, version   pairs     id: 1 to 255 bytes; version: of the claim that is in the database now; 1 to 1000 pairs
-- REPLIES
--   {"OK", word...}           for each pair CLEAN or DIRTY: it is marked, and has nothing more to be saved, or was
--                             changed meanwhile; or STALE: not claimed in that version any more, nothing done
-- ERRORS
--   BADARG                    an argument is missing, or an id too long or empty; nothing done
-- REPEAT  safe: a repeat finds it STALE
-- SINCE   0.1.0

local ids, good = {}, #KEYS == 3 and #ARGV > 4 and #ARGV < 2004 and #ARGV % 2 == 1
for i = 4, good and #ARGV or 0, 2 do
  ids[#ids + 1], good = ARGV[i], good and ARGV[i] ~= '' and #ARGV[i] < 256
end
if not good then return redis.error_reply('BADARG expected 3 keys, 2 numbers of ms, now_ms, and 1 to 1000 pairs') end

local time, save_after_ms, retain_ms = redis.call('TIME'), ARGV[1] + 0, ARGV[2] + 0
local now = tonumber(ARGV[3]) or time[1] * 1000 + math.floor(time[2] / 1000)
local values, rows = redis.call('HMGET', KEYS[1], unpack(ids)), redis.call('HMGET', KEYS[2], unpack(ids))
redis.call('ZCARD', KEYS[3]) -- as the reads above: a key of another type ends the script before anything is written

local reply, due, new_rows, unchanged = { 'OK' }, {}, {}, {}
for i, id in ipairs(ids) do
  local value, version = values[i], ARGV[3 + 2 * i]
  local base, _, lineage, n, used, claim, at =
    (rows[i] or ''):match('^([-%d]%d*) ([-=:%x]+) (%x+) (%d+) (%d+) (%-?%d+) (%d+)$')
  reply[i + 1] = 'STALE'
  if value and base and version == lineage .. ':' .. n then
    local is_clean = value == claim or value == '=' .. claim
    reply[i + 1] = is_clean and 'CLEAN' or 'DIRTY'
    new_rows[#new_rows + 1], new_rows[#new_rows + 2] = id, table.concat({ claim, '=', lineage, n, used }, ' ')
    due[#due + 1], due[#due + 2] = math.max(now, is_clean and used + retain_ms or at + save_after_ms), id
    if is_clean then unchanged[#unchanged + 1], unchanged[#unchanged + 2] = id, '=' .. claim end
  end
end

-- deletes nothing: where memory is full a script may go on once it has written, and draining must work there
redis.call('HDEL', KEYS[2], '')
if new_rows[1] then redis.call('HSET', KEYS[2], unpack(new_rows)) end
if unchanged[1] then redis.call('HSET', KEYS[1], unpack(unchanged)) end
if due[1] then redis.call('ZADD', KEYS[3], unpack(due)) end
return reply
