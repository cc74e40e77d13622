-- cached_delete, revision 1
-- Deletes counters that are saved and have not been changed for long.
--
-- KEYS
--   1 values        hash      id -> value; a counter is there while it has one; "=VALUE" until it is changed
--   2 rows          hash      id -> "BASE SAVED LINEAGE N USED [CLAIM AT]", or "ticket HEX16" before it is seeded
--   3 schedule      zset      id -> ms: when something is next to be done about it
-- ARGV
--   1 retain_ms     integer   a counter that is saved may be deleted when it was not changed for so long
--   2 now_ms        integer   "" for the server's clock; anything else is for tests
--   3 id            id        1 to 255 bytes; then the next one, up to 1000
-- REPLIES
--   {"OK", word...}           for each id DELETED, also a ticket that ended; or KEPT:claimed, KEPT:dirty, KEPT:early
--                             (changed lately, or a ticket that has not ended), KEPT:bad (its value or row has another
--                             shape, somebody wrote there); or GONE: nothing is known of it, and it was taken off the
--                             schedule
-- ERRORS
--   BADARG                    an argument is missing, or an id too long or empty; nothing done
-- REPEAT  safe
-- SINCE   0.1.0

local good = #KEYS == 3 and #ARGV > 2 and #ARGV < 1003
for i = 3, good and #ARGV or 0 do good = good and ARGV[i] ~= '' and #ARGV[i] < 256 end
if not good then return redis.error_reply('BADARG expected 3 keys, retain_ms, now_ms, and 1 to 1000 ids') end

local time, retain_ms, schedule = redis.call('TIME'), ARGV[1] + 0, KEYS[3]
local now = tonumber(ARGV[2]) or time[1] * 1000 + math.floor(time[2] / 1000)
local values, rows = redis.call('HMGET', KEYS[1], unpack(ARGV, 3)), redis.call('HMGET', KEYS[2], unpack(ARGV, 3))
redis.call('ZCARD', schedule) -- as the reads above: a key of another type ends the script before anything is written

local reply, deleted, gone = { 'OK' }, {}, {}
for i, value in ipairs(values) do
  local id, row, word = ARGV[i + 2], rows[i] or '', 'DELETED'
  local base, _, _, _, used, claim, at =
    row:match('^([-%d]%d*) ([-=:%x]+) (%x+) (%d+) (%d+) ?(%-?%d*) ?(%d*)$')
  local number = value and value:match('^=?(%-?%d+)$')
  if not value then
    -- a row without a value is what a crash left of a seed or a deletion, and goes
    local ends = row:find('^ticket ') and tonumber(redis.call('ZSCORE', schedule, id) or nil)
    word = not rows[i] and 'GONE' or ends and ends > now and 'KEPT:early' or word
  elseif not number or not base or claim ~= '' and at == '' then
    word = 'KEPT:bad'
  elseif claim ~= '' then
    word = 'KEPT:claimed'
  elseif number ~= (base == '-' and '0' or base) then
    word = 'KEPT:dirty'
  elseif used + retain_ms > now then
    word = 'KEPT:early'
  end
  reply[i + 1] = word
  if word == 'DELETED' then deleted[#deleted + 1] = id end
  if word == 'DELETED' or word == 'GONE' then gone[#gone + 1] = id end
end

-- in this order since a crash may keep the first of these writes only: the schedule knows of all that is there
if deleted[1] then
  redis.call('HDEL', KEYS[1], unpack(deleted))
  redis.call('HDEL', KEYS[2], unpack(deleted))
end
if gone[1] then redis.call('ZREM', schedule, unpack(gone)) end
return reply
