-- buffered_release, revision 1
-- Drops a batch that is in the database, and the lease on it.
--
-- KEYS
--   1 batch         hash      id -> delta
--   2 meta          hash      incarnation, seq, batch_first_at, lease_owner, lease_until
-- ARGV
--   1 incarnation   hex16     with seq, the batch's id as buffered_rotate returned it
--   2 seq           integer   counts up from 1 within the incarnation
-- REPLIES
--   {"OK"}                    gone
--   {"STALE"}                 that batch is not there (any more)
-- ERRORS
--   BADARG                    an argument is missing or wrong; nothing done
-- REPEAT  safe
-- SINCE   0.1.0

local batch, meta = KEYS[1], KEYS[2]
if #KEYS ~= 2 or #ARGV ~= 2 then
  return redis.error_reply('BADARG expected batch and meta, incarnation and seq')
end

local cut, state = redis.call('HLEN', batch), redis.call('HMGET', meta, 'incarnation', 'seq')
if cut == 0 or state[1] ~= ARGV[1] or state[2] ~= ARGV[2] then return { 'STALE' } end

-- UNLINK frees a large hash in the background; DEL would hold everybody up
redis.call('UNLINK', batch)
redis.call('HDEL', meta, 'batch_first_at', 'lease_owner', 'lease_until')
return { 'OK' }
