-- buffered_moved, revision 1
-- Tells which ids were counted since a cut, for a recount that corrects only what did not move.
--
-- KEYS
--   1 buffer        hash      id -> pending delta; a field, also of 0, disappears only with a cut
--   2 meta          hash      incarnation, seq, nonce
-- ARGV
--   1 incarnation   hex16     with seq and nonce, the last cut when the caller read the counters
--   2 seq           integer   "0" where nothing was cut
--   3 nonce         hex16     "" where nothing was cut
--   4 id            id        1 to 255 bytes; then the next one, up to 1000
-- REPLIES
--   {"OK", moved...}          for each id 1 if it was counted since the cut, otherwise 0
--   {"STALE"}                 the partition was cut since: the ids may have moved
-- ERRORS
--   BADARG                    an argument is missing
-- REPEAT  safe: it only reads
-- SINCE   0.1.0
-- CALLER  Partition::moved in src/scripts/partition/buffered.rs
-- VECTORS lua/vectors/buffered_moved.json

local buffer, meta, incarnation, seq, nonce = KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3]
if #KEYS ~= 2 or #ARGV < 4 or #ARGV > 1003 then
  return redis.error_reply('BADARG expected buffer, meta, incarnation, seq, nonce and 1 to 1000 '
    .. 'ids')
end

-- check that nothing was cut since
local own_incarnation, own_seq, own_nonce = unpack(redis.call('HMGET', meta, 'incarnation', 'seq',
  'nonce'))
local is_same = own_incarnation == incarnation and (own_seq or '0') == seq
  and (own_nonce or '') == nonce
if not is_same then return { 'STALE' } end

-- an id that was counted since is in the buffer
local reply = { 'OK' }
for i, delta in ipairs(redis.call('HMGET', buffer, unpack(ARGV, 4))) do
  reply[i + 1] = delta and 1 or 0
end
return reply
