-- buffered_reset, revision 1
-- Starts a partition anew where Redis was set back: drops what is not in the database.
--
-- KEYS
--   1 meta          hash      incarnation, seq, nonce, hits, batch_hits, hits_before and what else
--                             belongs to a batch
--   2 calls         hash      of the partition's home: =now, =before, =began_at
--   3 requests      hash      of the home: "LENGTH:REQUEST:ID" -> what a pair with this request
--                             got; =now, =before, =began_at, =tag
--   4 requests_before  hash  the same of the generation before
--   5 buffer        hash      id -> pending delta
--   6 batch         hash      id -> delta
--   7 [other]       any       what else it drops: base
-- ARGV
--   1 incarnation   hex16     with seq and nonce, what is proven to be older than the database
--   2 seq           integer   of the last cut, "0" where nothing was cut
--   3 nonce         hex16     of the last cut, "" where nothing was cut
--   4 salt          string    random; the new incarnation is made of it and the time
--   5 now_ms        integer   "" for the server's clock; anything else is for tests
-- REPLIES
--   {"OK", hits, ids, incarnation}  dropped: so many hits, of so many ids; the partition has a new
--                                   incarnation; the home's epochs and generations have ended, so
--                                   that earlier calls cannot arrive again, and its requests are of
--                                   unknown outcome
--   {"STALE"}                 the partition is in another state (by now); nothing done
-- ERRORS
--   BADARG                    an argument is missing or wrong; nothing done
-- REPEAT  safe: a repeat is STALE
-- SINCE   0.1.0
-- CALLER  Partition::reset in src/scripts/partition/buffered.rs
-- VECTORS lua/vectors/buffered_reset.json

local meta, calls, requests, requests_before = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local buffer, batch = KEYS[5], KEYS[6]
local incarnation, seq, nonce, salt, test_ms = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
if #KEYS < 6 or #ARGV ~= 5 or salt == '' then
  return redis.error_reply('BADARG expected meta, calls, requests, requests_before, buffer, batch '
    .. 'and what else to drop, incarnation, seq, nonce, salt and now_ms')
end

-- check that the partition is still in the state that is proven to be older than the database
local own_incarnation, own_seq, own_nonce, hits, batch_hits, hits_before = unpack(
  redis.call('HMGET', meta, 'incarnation', 'seq', 'nonce', 'hits', 'batch_hits', 'hits_before'))
local is_same = own_incarnation == incarnation and (own_seq or '0') == seq
  and (own_nonce or '') == nonce
if not is_same then return { 'STALE' } end -- guard: Reset

-- count what is dropped
local ids = redis.call('HLEN', buffer) + redis.call('HLEN', batch)
local waiting, cut = tonumber(hits) or 0, tonumber(batch_hits) or 0
local before = tonumber(hits_before) or 0
if redis.call('EXISTS', batch) == 0 then cut = 0 end
local time = test_ms == '' and redis.call('TIME') or { '0', test_ms .. '000' }
local seed = table.concat({ meta, salt, time[1], time[2] }, ' ')
local new_incarnation = redis.sha1hex(seed):sub(1, 16)

-- The order of these writes matters, since a crash may keep only the first of them. The epochs end
-- before hits are dropped, so that no earlier call can arrive after that. The incarnation changes
-- last: while it is the former one, a reconciler finds that Redis was set back, and resets again.
redis.call('HDEL', calls, '=now', '=before', '=began_at') -- guard: EndOfEpochs
for _, memory in ipairs({ requests, requests_before }) do
  local exists = redis.call('EXISTS', memory) == 1
  -- what was stored with another tag is of unknown outcome
  if exists then redis.call('HSET', memory, '=tag', new_incarnation) end -- guard: Tag
end
redis.call('HDEL', requests, '=now', '=before', '=began_at') -- guard: EndOfGenerations
redis.call('UNLINK', unpack(KEYS, 5))
redis.call('HDEL', meta, 'seq', 'nonce', 'rotated_at', 'batch_first_at', 'batch_hits', 'first_at',
  'lease_owner', 'lease_until')
local counted = string.format('%.0f', before + waiting)
redis.call('HSET', meta, 'incarnation', new_incarnation, 'hits', '0', 'hits_before', counted)
return { 'OK', waiting + cut, ids, new_incarnation }
