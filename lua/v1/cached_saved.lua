-- cached_saved, revision 1
-- Marks counters of the current batch as saved: their base is the row, and they leave the batch.
--
-- KEYS
--   1 base          hash      id -> "AT_MS ROW", as cached_seed stores it, or "AT_MS ticket
--                             HEX16" before that
--   2 buffer        hash      id -> pending delta
--   3 batch         hash      id -> delta
--   4 meta          hash      incarnation, seq, nonce, batch_first_at, batch_hits, lease_owner,
--                             lease_until
-- ARGV
--   1 incarnation   hex16     with seq and nonce, the batch's id as buffered_rotate returned it; it
--                             is complete in the database
--   2 seq           integer   counts up from 1 within the incarnation
--   3 nonce         hex16     new with every cut
--   4 now_ms        integer   "" for the server's clock; anything else is for tests
--   5 id, value     pairs     id: of the batch; value: what the primary's row holds, read after the
--                             batch was complete, "-" for a missing row, or "beyond" for a row that
--                             is not below 2^53 in size, whose counter loses its base; 1 to 1000
-- REPLIES
--   {"OK", left}              saved; so many ids are left in the batch, 0 where it is gone, and the
--                             lease with it; the field "" of no id is gone as well
--   {"STALE"}                 that batch is not there (any more); nothing done
-- ERRORS
--   BADARG                    an argument is missing or wrong; nothing done
-- REPEAT  safe
-- SINCE   0.1.0
-- CALLER  Partition::saved in src/scripts/partition/cached.rs
-- VECTORS lua/vectors/cached_saved.json

local base_key, buffer, batch, meta = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local incarnation, seq, nonce, test_ms = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local ids, rows = {}, {}
local fits = #KEYS == 4 and #ARGV > 5 and #ARGV < 2005 and #ARGV % 2 == 0
for i = 5, fits and #ARGV or 0, 2 do
  local id, row = ARGV[i], ARGV[i + 1]
  ids[#ids + 1], rows[#rows + 1] = id, row
  fits = fits and (row == '-' or row == 'beyond' or row:find('^%-?%d+$'))
end
if not fits then
  return redis.error_reply('BADARG expected 4 keys, incarnation, seq, nonce, now_ms, and 1 to '
    .. '1000 pairs')
end

-- check that this batch is there
local cut = redis.call('HLEN', batch)
local own_incarnation, own_seq, own_nonce = unpack(redis.call('HMGET', meta, 'incarnation', 'seq',
  'nonce'))
local is_current = own_incarnation == incarnation and own_seq == seq and own_nonce == nonce
if cut == 0 then return { 'STALE' } end
if not is_current then return { 'STALE' } end -- guard: Unchanged

-- decide for each base whether the row replaces it, or it is deleted
local time = redis.call('TIME')
local now_ms = tonumber(test_ms) or time[1] * 1000 + math.floor(time[2] / 1000)
local stored_at = string.format('%013.0f ', now_ms)
local bases = redis.call('HMGET', base_key, unpack(ids))
local waits = redis.call('HMGET', buffer, unpack(ids))
local unsaved = redis.call('HMGET', batch, unpack(ids))
local saved, gone = {}, {}
for i, id in ipairs(ids) do
  local row, base, is_waiting = rows[i], bases[i], waits[i]
  -- The caller that holds a ticket may have read its row before the batch was in it. So the ticket
  -- ends, and cannot seed the counter.
  local is_ticket = base and base:find('ticket', 15, true)
  local is_beyond = row == 'beyond' or math.abs(tonumber(row) or 0) >= 2^53
  -- If the id has left the batch already, another worker saved it, and this row may be older than
  -- the base.
  if unsaved[i] and (is_beyond or is_ticket or row == '-' and not is_waiting) then
    gone[#gone + 1] = id
  elseif unsaved[i] and base then
    saved[#saved + 1], saved[#saved + 2] = id, stored_at .. (row == '-' and '0' or row)
  end
end

-- The field of no id may be left from a script that a crash cut off. It is deleted first, because
-- batches must reach the database also where memory is full: there Redis refuses HSET as the first
-- write of a script, but not HDEL, and after the first write it refuses none.
redis.call('HDEL', batch, '')
if saved[1] then redis.call('HSET', base_key, unpack(saved)) end
if gone[1] then redis.call('HDEL', base_key, unpack(gone)) end
redis.call('HDEL', batch, unpack(ids))
local left = redis.call('HLEN', batch)
if left == 0 then
  redis.call('HDEL', meta, 'batch_first_at', 'batch_hits', 'lease_owner', 'lease_until')
end
return { 'OK', left }
