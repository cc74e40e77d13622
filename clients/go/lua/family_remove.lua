-- family_remove, revision 1
-- Deletes keys of a family that is not in use and has nothing pending.
--
-- KEYS
--   1 calls         hash      of the home partition: =began_at, when its last epoch began
--   2 key           any       the pending keys, which exist while hits wait: buffer and batch of
--                             each partition whose calls have this home; then the keys to delete;
--                             up to 4000 in all
-- ARGV
--   1 pending       integer   how many of the keys after calls are the pending ones, 1 or more
--   2 unused_ms     integer   the age of the last epoch from which the family is not in use;
--                             processes that use it begin one about every minute
--   3 now_ms        integer   "" for the server's clock; anything else is for tests
-- REPLIES
--   {"OK", deleted}           how many of the keys to delete there were
--   {"USED", age_ms}          the last epoch is younger; nothing done
--   {"PENDING"}               hits wait; nothing done
-- ERRORS
--   BADARG                    an argument is missing or wrong; nothing done
-- REPEAT  safe
-- SINCE   0.1.0
-- CALLER  Partition::remove in src/scripts/partition/settings.rs
-- VECTORS lua/vectors/family_remove.json

local calls, test_ms = KEYS[1], ARGV[3]
local pending, unused_ms = tonumber(ARGV[1]) or 0, tonumber(ARGV[2])
local fits = #ARGV == 3 and unused_ms and pending >= 1 and pending % 1 == 0 and #KEYS <= 4000
local last_pending = 1 + pending
if not fits or #KEYS <= last_pending then
  return redis.error_reply('BADARG expected calls, pending keys and keys to delete; how many are '
    .. 'pending ones, unused_ms and now_ms')
end

local time = redis.call('TIME')
local now_ms = tonumber(test_ms) or time[1] * 1000 + math.floor(time[2] / 1000)
local began_at = tonumber(redis.call('HGET', calls, '=began_at') or '')
-- After the clock stepped back, the age of an epoch that lies ahead is unknown: it counts as new.
local age_ms = began_at and math.max(now_ms - began_at, 0)
if age_ms and age_ms < unused_ms then return { 'USED', age_ms } end
if redis.call('EXISTS', unpack(KEYS, 2, last_pending)) > 0 then return { 'PENDING' } end
return { 'OK', redis.call('UNLINK', unpack(KEYS, last_pending + 1)) }
