-- buffered_release, revision 1
-- Drops a batch that is complete in the database, and the lease on it.
--
-- KEYS
--   1 batch         hash      id -> delta
--   2 meta          hash      incarnation, seq, nonce, batch_first_at, batch_hits, lease_owner,
--                             lease_until
-- ARGV
--   1 incarnation   hex16     with seq and nonce, the batch's id as buffered_rotate returned it
--   2 seq           integer   counts up from 1 within the incarnation
--   3 nonce         hex16     new with every cut
-- REPLIES
--   {"OK"}                    dropped
--   {"STALE"}                 that batch is not there (any more)
-- ERRORS
--   BADARG                    an argument is missing or wrong; nothing done
-- REPEAT  safe
-- SINCE   0.1.0
-- CALLER  Partition::release in src/scripts/partition/buffered.rs
-- VECTORS lua/vectors/buffered_release.json

local batch, meta, incarnation, seq, nonce = KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3]
if #KEYS ~= 2 or #ARGV ~= 3 then
  return redis.error_reply('BADARG expected batch and meta, incarnation, seq and nonce')
end

-- check that this batch is there
local ids = redis.call('HLEN', batch)
local own_incarnation, own_seq, own_nonce = unpack(redis.call('HMGET', meta, 'incarnation', 'seq',
  'nonce'))
if ids == 0 or own_incarnation ~= incarnation or own_seq ~= seq then return { 'STALE' } end
if own_nonce ~= nonce then return { 'STALE' } end -- guard: Release

-- UNLINK frees a large hash in the background; DEL would block the server
redis.call('UNLINK', batch)
redis.call('HDEL', meta, 'batch_first_at', 'batch_hits', 'lease_owner', 'lease_until')
return { 'OK' }
