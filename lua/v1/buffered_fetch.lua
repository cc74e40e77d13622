-- buffered_fetch, revision 1
-- Hands out a page of a batch once it is durable. Content read earlier must not reach the database.
--
-- KEYS
--   1 batch         hash      id -> delta
--   2 meta          hash      incarnation, seq, nonce, rotated_at
-- ARGV
--   1 incarnation   hex16     with seq and nonce, the batch's id as buffered_rotate returned it
--   2 seq           integer   counts up from 1 within the incarnation
--   3 nonce         hex16     new with every cut
--   4 settle_ms     integer   how long after the cut it counts as durable; 0 for at once
--   5 cursor        cursor    "0" at first, then what the last page returned
--   6 count         integer   about how many ids a page has, 1 to 10000
--   7 now_ms        integer   "" for the server's clock; anything else is for tests
-- REPLIES
--   {"OK", cursor, {id, delta, ...}, size}  a page, and how many ids the batch has; cursor "0" with
--                             the last; an id may come twice, with the same delta; where ids are
--                             missing after the last page, because pages came from two servers,
--                             begin again at "0"
--   {"WAIT", ms}              not durable for so long
--   {"STALE"}                 that batch is not there (any more)
-- ERRORS
--   BADARG                    an argument is missing or wrong; nothing done
-- REPEAT  safe
-- SINCE   0.1.0
-- CALLER  Partition::fetch in src/scripts/partition/buffered.rs
-- VECTORS lua/vectors/buffered_fetch.json

local batch, meta = KEYS[1], KEYS[2]
local incarnation, seq, nonce, cursor, count_text = ARGV[1], ARGV[2], ARGV[3], ARGV[5], ARGV[6]
local settle_ms = (ARGV[4] or ''):find('^%d+$') and tonumber(ARGV[4])
local count, test_ms = tonumber(count_text) or 0, ARGV[7]
if #KEYS ~= 2 or #ARGV ~= 7 or not settle_ms or count < 1 or count > 10000 then
  return redis.error_reply('BADARG expected batch and meta, incarnation, seq, nonce, settle_ms, '
    .. 'cursor, a count of 1 to 10000, and now_ms')
end

-- check that this batch is there
local time = redis.call('TIME')
local now = tonumber(test_ms) or time[1] * 1000 + math.floor(time[2] / 1000)
local ids = redis.call('HLEN', batch)
local own_incarnation, own_seq, own_nonce, rotated_at = unpack(redis.call('HMGET', meta,
  'incarnation', 'seq', 'nonce', 'rotated_at'))
local is_current = own_incarnation == incarnation and own_seq == seq and own_nonce == nonce
if ids == 0 or not is_current or not rotated_at then return { 'STALE' } end

-- read a page if the batch is durable; before the write below, since a wrong cursor ends the script
local settled_ms = now - rotated_at
local is_durable = math.max(settled_ms, 0) >= settle_ms
local next_cursor, page
if is_durable then
  next_cursor, page = unpack(redis.call('HSCAN', batch, cursor, 'COUNT', count_text))
end
if settled_ms < 0 then
  -- The clock stepped back, and the age of the cut is unknown: the time to settle starts again.
  -- Batches must reach the database also where memory is full. There Redis refuses HSET as the
  -- first write of a script, but not HDEL, and after the first write it refuses none. So this HDEL
  -- comes first, and deletes nothing.
  redis.call('HDEL', meta, '')
  redis.call('HSET', meta, 'rotated_at', string.format('%.0f', now))
  settled_ms = 0
end
if settled_ms < settle_ms then return { 'WAIT', settle_ms - settled_ms } end
return { 'OK', next_cursor, page, ids }
