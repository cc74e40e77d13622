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

local meta, calls, salt = KEYS[1], KEYS[2], ARGV[4]
if #KEYS < 6 or #ARGV ~= 5 or salt == '' then
  return redis.error_reply('BADARG expected meta, calls, requests, requests_before, buffer, batch '
    .. 'and what else to drop, incarnation, seq, nonce, salt and now_ms')
end

local fields = { 'incarnation', 'seq', 'nonce', 'hits', 'batch_hits', 'hits_before' }
local state = redis.call('HMGET', meta, unpack(fields))
local is_same = state[1] == ARGV[1] and (state[2] or '0') == ARGV[2] and (state[3] or '') == ARGV[3]
if not is_same then return { 'STALE' } end -- guard: Reset
local ids = redis.call('HLEN', KEYS[5]) + redis.call('HLEN', KEYS[6])
local waiting, cut = tonumber(state[4]) or 0, tonumber(state[5]) or 0
local before = tonumber(state[6]) or 0
if redis.call('EXISTS', KEYS[6]) == 0 then cut = 0 end

local time = ARGV[5] == '' and redis.call('TIME') or { '0', ARGV[5] .. '000' }
local incarnation = redis.sha1hex(table.concat({ meta, salt, time[1], time[2] }, ' ')):sub(1, 16)
-- in this order, since a crash may keep a part of these writes: epochs end before hits are dropped,
-- and the incarnation, by which the set-back is known, changes at the end
redis.call('HDEL', calls, '=now', '=before', '=began_at') -- guard: EndOfEpochs
for i = 3, 4 do
  local exists = redis.call('EXISTS', KEYS[i]) == 1
  -- what was stored with another tag is of unknown outcome
  if exists then redis.call('HSET', KEYS[i], '=tag', incarnation) end -- guard: Tag
end
redis.call('HDEL', KEYS[3], '=now', '=before', '=began_at') -- guard: EndOfGenerations
redis.call('UNLINK', unpack(KEYS, 5))
redis.call('HDEL', meta, 'seq', 'nonce', 'rotated_at', 'batch_first_at', 'batch_hits', 'first_at',
  'lease_owner', 'lease_until')
local counted = string.format('%.0f', before + waiting)
redis.call('HSET', meta, 'incarnation', incarnation, 'hits', '0', 'hits_before', counted)
return { 'OK', waiting + cut, ids, incarnation }
