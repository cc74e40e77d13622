-- buffered_read, revision 1
-- Reads what ids have pending, and the id of the batch, for an exact read against the database.
--
-- KEYS
--   1 buffer        hash      id -> pending delta
--   2 batch         hash      id -> delta
--   3 meta          hash      incarnation, seq, nonce
-- ARGV
--   1 id            id        1 to 255 bytes; then the next one, up to 1000
-- REPLIES
--   {"OK", incarnation, seq, nonce, in_flight, batch_delta, buffer_delta, ...}  "" where the
--                             partition was neither configured nor counted in; "0" and "" where
--                             nothing was ever cut; in_flight is 1 while the batch (incarnation,
--                             seq, nonce) is there; then two strings an id
-- ERRORS
--   BADARG                    an argument is missing or wrong
-- REPEAT  safe: it only reads
-- SINCE   0.1.0

if #KEYS ~= 3 or #ARGV < 1 or #ARGV > 1000 then
  return redis.error_reply('BADARG expected buffer, batch, meta, and 1 to 1000 ids')
end
for i = 1, #ARGV do
  if ARGV[i] == '' or #ARGV[i] > 255 then
    return redis.error_reply('BADARG expected ids of 1 to 255 bytes')
  end
end

local state = redis.call('HMGET', KEYS[3], 'incarnation', 'seq', 'nonce')
local cut = redis.call('HMGET', KEYS[2], unpack(ARGV))
local waiting = redis.call('HMGET', KEYS[1], unpack(ARGV))
local in_flight = redis.call('EXISTS', KEYS[2])
local reply = { 'OK', state[1] or '', state[2] or '0', state[3] or '', in_flight }
for i = 1, #ARGV do
  reply[2 * i + 4] = cut[i] or '0'
  reply[2 * i + 5] = waiting[i] or '0'
end
return reply
