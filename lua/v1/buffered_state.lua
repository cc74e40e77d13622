-- buffered_state, revision 1
-- Reads which batch each partition cut last, to be compared with a ledger that was read before.
--
-- KEYS
--   1 meta          hash      incarnation, seq, nonce, database; then the meta of the next
--                             partition, up to 1000
-- ARGV
-- REPLIES
--   {"OK", incarnation, seq, nonce, database, ...}  four strings a partition: "" where it was
--                             neither configured nor counted in; "0" and "" where nothing was ever
--                             cut; the id of the database that its hits go to, "" where it is
--                             unknown: the ledger of another one proves nothing
-- ERRORS
--   BADARG                    no key, too many of them, or an argument
-- REPEAT  safe: it only reads
-- SINCE   0.1.0
-- CALLER  last_cuts in src/scripts/partition/buffered.rs
-- VECTORS lua/vectors/buffered_state.json

if #KEYS < 1 or #KEYS > 1000 or #ARGV ~= 0 then
  return redis.error_reply('BADARG expected 1 to 1000 times meta')
end
local reply = { 'OK' }
for _, meta in ipairs(KEYS) do
  local incarnation, seq, nonce, database = unpack(redis.call('HMGET', meta, 'incarnation', 'seq',
    'nonce', 'database'))
  reply[#reply + 1] = incarnation or ''
  reply[#reply + 1] = seq or '0'
  reply[#reply + 1] = nonce or ''
  reply[#reply + 1] = database or ''
end
return reply
