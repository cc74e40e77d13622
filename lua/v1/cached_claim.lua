-- cached_claim, revision 1
-- Claims what is to be saved, and hands out what may be written to the database by now.
--
-- KEYS
--   1 values        hash      id -> value; a counter is there while it has one; "=VALUE" until it is changed
--   2 rows          hash      id -> "BASE SAVED LINEAGE N USED [CLAIM AT]", or "ticket HEX16" before it is seeded
--   3 schedule      zset      id -> ms: when something is next to be done about it
-- ARGV
--   1 settle_ms     integer   how long after it was made a claim counts as durable
--   2 lease_ms      integer   for how long others are to leave alone what is handed out
--   3 retain_ms     integer   a counter that is saved may be deleted when it was not changed for so long
--   4 now_ms        integer   "" for the server's clock; anything else is for tests
--   5 id            id        1 to 255 bytes; then the next one, up to 1000
-- REPLIES
--   {"OK", {word, ...}...}    for each id SAVE, base, saved, value, version, fresh: write this value and version where
--                             the row has that base ("-" for no row) and was saved in that version ("-" for none);
--                             or WAIT, ms, fresh: it is claimed, and durable in so many ms; or CLEAN, ms: nothing to
--                             save, and it may be deleted in so many ms (also a ticket that ends then); or GONE:
--                             nothing is known of it, and it was taken off the schedule; or BAD, why: its value or row
--                             has another shape, somebody wrote there. fresh is 1 where this call claimed it, else 0
-- ERRORS
--   BADARG                    an argument is missing, or an id too long or empty; nothing done
-- REPEAT  safe: what is claimed stays claimed
-- SINCE   0.1.0

local good = #KEYS == 3 and #ARGV > 4 and #ARGV < 1005
for i = 5, good and #ARGV or 0 do good = good and ARGV[i] ~= '' and #ARGV[i] < 256 end
if not good then return redis.error_reply('BADARG expected 3 keys, 4 numbers of ms, and 1 to 1000 ids') end

local time, settle_ms, lease_ms, retain_ms = redis.call('TIME'), ARGV[1] + 0, ARGV[2] + 0, ARGV[3] + 0
local now = tonumber(ARGV[4]) or time[1] * 1000 + math.floor(time[2] / 1000)
local now_ms, schedule = string.format('%.0f', now), KEYS[3]
local values, rows = redis.call('HMGET', KEYS[1], unpack(ARGV, 5)), redis.call('HMGET', KEYS[2], unpack(ARGV, 5))
redis.call('ZCARD', schedule) -- as the reads above: a key of another type ends the script before anything is written

local reply, due, new_rows, unchanged, gone = { 'OK' }, {}, {}, {}, {}
for i, value in ipairs(values) do
  local id, row, due_at = ARGV[i + 4], rows[i], nil
  local base, saved, lineage, n, used, claim, at =
    (row or ''):match('^([-%d]%d*) ([-=:%x]+) (%x+) (%d+) (%d+) ?(%-?%d*) ?(%d*)$')
  local number = value and value:match('^=?(%-?%d+)$')
  if not value and not row then
    reply[i + 1], gone[#gone + 1] = { 'GONE' }, id
  elseif not value then
    -- a row without a value is what a crash left of a seed or a deletion, and waits for nothing
    local ends = row:find('^ticket ') and tonumber(redis.call('ZSCORE', schedule, id) or nil) or now
    -- one that ends later than anything does is from before the clock stepped back
    if ends > now + retain_ms then ends, due_at = now + retain_ms, now + retain_ms end
    reply[i + 1] = { 'CLEAN', math.max(0, ends - now) }
  elseif not number or not base or claim ~= '' and at == '' then
    reply[i + 1] = { 'BAD', row and 'the value or the row has another shape' or 'a value without a row' }
    due_at = now + math.max(lease_ms, 1000)
  elseif claim == '' and number == (base == '-' and '0' or base) then
    -- changed and changed back is used as well; a use in the future is from before the clock stepped back
    if value == number or tonumber(used) > now then
      used, unchanged[#unchanged + 1], unchanged[#unchanged + 2] = now_ms, id, '=' .. number
      new_rows[#new_rows + 1], new_rows[#new_rows + 2] = id, table.concat({ base, saved, lineage, n, used }, ' ')
    end
    local left = math.max(0, used + retain_ms - now)
    reply[i + 1], due_at = { 'CLEAN', left }, left > 0 and now + left
  else
    local fresh = claim == '' and 1 or 0
    if fresh == 1 then
      saved = saved == '=' and lineage .. ':' .. n or saved
      n, used, claim, at = string.format('%.0f', n + 1), now_ms, number, now_ms
    end
    -- a clock that stepped back cannot tell how long ago the claim was made
    if fresh == 1 or tonumber(at) > now then
      at, new_rows[#new_rows + 1] = now_ms, id
      new_rows[#new_rows + 1] = table.concat({ base, saved, lineage, n, used, claim, at }, ' ')
    end
    local left = at + settle_ms - now
    local save = { 'SAVE', base, saved, claim, lineage .. ':' .. n, fresh }
    reply[i + 1] = left > 0 and { 'WAIT', left, fresh } or save
    due_at = left > 0 and now + left or now + lease_ms
  end
  if due_at then due[#due + 1], due[#due + 2] = due_at, id end
end

-- deletes nothing: where memory is full a script may go on once it has written, and draining must work there
redis.call('HDEL', KEYS[2], '')
if new_rows[1] then redis.call('HSET', KEYS[2], unpack(new_rows)) end
if unchanged[1] then redis.call('HSET', KEYS[1], unpack(unchanged)) end
if due[1] then redis.call('ZADD', schedule, unpack(due)) end
if gone[1] then redis.call('ZREM', schedule, unpack(gone)) end
return reply
