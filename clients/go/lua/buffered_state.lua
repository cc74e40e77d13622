-- buffered_state, revision 1
-- Reads which batch each partition cut last, to be compared with a ledger that was read before.
--
-- KEYS
--   1 meta          hash      incarnation, seq, nonce; then the meta of the next partition, up to
--                             1000
-- ARGV
-- REPLIES
--   {"OK", incarnation, seq, nonce, ...}  three strings a partition: "" where it was neither
--                             configured nor counted in; "0" and "" where nothing was ever cut
-- ERRORS
--   BADARG                    no key, too many of them, or an argument
-- REPEAT  safe: it only reads
-- SINCE   0.1.0

if #KEYS < 1 or #KEYS > 1000 or #ARGV ~= 0 then
  return redis.error_reply('BADARG expected 1 to 1000 times meta')
end
local reply = { 'OK' }
for _, meta in ipairs(KEYS) do
  local state = redis.call('HMGET', meta, 'incarnation', 'seq', 'nonce')
  reply[#reply + 1] = state[1] or ''
  reply[#reply + 1] = state[2] or '0'
  reply[#reply + 1] = state[3] or ''
end
return reply
