-- buffered_read, revision 1
-- Reads what ids have pending, and the id of the batch, for an exact read against the database.
--
-- KEYS
--   1 buffer        hash      id -> pending delta
--   2 batch         hash      id -> delta
--   3 meta          hash      incarnation, seq, nonce, database
-- ARGV
--   1 id            id        1 to 255 bytes; then the next one, up to 1000
-- REPLIES
--   {"OK", incarnation, seq, nonce, database, in_flight, batch_delta, buffer_delta, ...}  "" where
--                             the partition was neither configured nor counted in; "0" and "" where
--                             nothing was ever cut; the id of the database that its hits go to, ""
--                             where it is unknown: the rows of another one do not belong to these
--                             deltas; in_flight is 1 while the batch (incarnation, seq, nonce) is
--                             there; then two strings an id
-- ERRORS
--   BADARG                    an argument is missing or wrong
-- REPEAT  safe: it only reads
-- SINCE   0.1.0
-- CALLER  Partition::read in src/scripts/partition/buffered.rs
-- VECTORS lua/vectors/buffered_read.json

local buffer, batch, meta, ids = KEYS[1], KEYS[2], KEYS[3], ARGV
if #KEYS ~= 3 or #ids < 1 or #ids > 1000 then
  return redis.error_reply('BADARG expected buffer, batch, meta, and 1 to 1000 ids')
end
for _, id in ipairs(ids) do
  if id == '' or #id > 255 then
    return redis.error_reply('BADARG expected ids of 1 to 255 bytes')
  end
end

-- read the batch's id, the database, and both deltas of each id
local incarnation, seq, nonce, database = unpack(redis.call('HMGET', meta, 'incarnation', 'seq',
  'nonce', 'database'))
local cut = redis.call('HMGET', batch, unpack(ids))
local waiting = redis.call('HMGET', buffer, unpack(ids))
local in_flight = redis.call('EXISTS', batch)

local reply = { 'OK', incarnation or '', seq or '0', nonce or '', database or '', in_flight }
for i = 1, #ids do
  reply[#reply + 1] = cut[i] or '0'
  reply[#reply + 1] = waiting[i] or '0'
end
return reply
