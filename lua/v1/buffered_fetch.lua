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

local batch, meta, count = KEYS[1], KEYS[2], tonumber(ARGV[6]) or 0
local settle_ms = (ARGV[4] or ''):find('^%d+$') and tonumber(ARGV[4])
if #KEYS ~= 2 or #ARGV ~= 7 or not settle_ms or count < 1 or count > 10000 then
  return redis.error_reply('BADARG expected batch and meta, incarnation, seq, nonce, settle_ms, '
    .. 'cursor, a count of 1 to 10000, and now_ms')
end

local time = redis.call('TIME')
local now = tonumber(ARGV[7]) or time[1] * 1000 + math.floor(time[2] / 1000)
local cut = redis.call('HLEN', batch)
local state = redis.call('HMGET', meta, 'incarnation', 'seq', 'nonce', 'rotated_at')
local is_current = state[1] == ARGV[1] and state[2] == ARGV[2] and state[3] == ARGV[3]
if cut == 0 or not is_current or not state[4] then return { 'STALE' } end

local settled = now - state[4]
-- before the write below, since a wrong cursor ends the script
local is_durable = math.max(settled, 0) >= settle_ms
local page = is_durable and redis.call('HSCAN', batch, ARGV[5], 'COUNT', ARGV[6])
if settled < 0 then
  -- the clock stepped back, and the age of the cut is unknown: the time to settle starts again
  -- (HDEL deletes nothing: after a write a script may continue where memory is full, and draining
  -- must work there)
  redis.call('HDEL', meta, '')
  redis.call('HSET', meta, 'rotated_at', string.format('%.0f', now))
  settled = 0
end
if settled < settle_ms then return { 'WAIT', settle_ms - settled } end
return { 'OK', page[1], page[2], cut }
