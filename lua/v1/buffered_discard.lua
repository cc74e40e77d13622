-- buffered_discard, revision 1
-- Begins anew where Redis was set back: drops a batch that the ledger is past, with what waits behind it.
--
-- KEYS
--   1 buffer        hash      id -> pending delta
--   2 batch         hash      id -> delta
--   3 meta          hash      incarnation, seq, batch_first_at, first_at, lease_owner, lease_until, hits, hits_before
-- ARGV
--   1 incarnation   hex16     with seq, the batch's id as buffered_rotate returned it
--   2 seq           integer   lower than the ledger's for the incarnation
--   3 new           hex16     random, 16 hexadecimal digits in lower case: the partition's incarnation from now on
-- REPLIES
--   {"OK", cut, waiting}      gone: so many ids of the batch, and of the buffer
--   {"STALE"}                 that batch is not there (any more); nothing done
-- ERRORS
--   BADARG                    an argument is missing or wrong; nothing done
-- REPEAT  safe
-- SINCE   0.1.0

local buffer, batch, meta = KEYS[1], KEYS[2], KEYS[3]
if #KEYS ~= 3 or #ARGV ~= 3 or #ARGV[3] ~= 16 or ARGV[3]:find('[^0-9a-f]') then
  return redis.error_reply('BADARG expected buffer, batch and meta, incarnation and seq, and a new incarnation of 16 '
    .. 'hexadecimal digits')
end

local waiting, cut = redis.call('HLEN', buffer), redis.call('HLEN', batch)
local state = redis.call('HMGET', meta, 'incarnation', 'seq', 'hits', 'hits_before')
if cut == 0 or state[1] ~= ARGV[1] or state[2] ~= ARGV[2] then return { 'STALE' } end

redis.call('UNLINK', batch, buffer)
redis.call('HDEL', meta, 'seq', 'batch_first_at', 'first_at', 'lease_owner', 'lease_until')
local hits = (tonumber(state[4]) or 0) + (tonumber(state[3]) or 0)
redis.call('HSET', meta, 'incarnation', ARGV[3], 'hits', '0', 'hits_before', string.format('%.0f', hits))
return { 'OK', cut, waiting }
