-- family_configure, revision 1
-- Writes what a family is beside its epoch, so that who believes it to be another one is refused.
--
-- KEYS
--   1 calls         hash      of one partition: caller -> its last call; =kind, =partitions and other settings, =now,
--                             =before, =began_at
-- ARGV
--   1 kind          word      buffered, cached, series, activity or visitors
--   2 partitions    integer   how many the family has
--   3 setting, value  pairs   max_pending: how many distinct ids a buffer may hold; save_after_ms: a change of a cached
--                             counter is saved so long after it
-- REPLIES
--   {"OK"}                    written; where they were others before, or the family has no such partition, its epochs
--                             have ended: callers ask for a new one, and are refused where they are wrong
-- ERRORS
--   BADARG                    an argument is missing or no setting; nothing done
-- REPEAT  safe
-- SINCE   0.1.0

local fit, fields = #KEYS == 1 and #ARGV >= 2 and #ARGV % 2 == 0, { '=kind', ARGV[1], '=partitions', ARGV[2] }
for i = 3, #ARGV, 2 do
  fit = fit and (ARGV[i] == 'max_pending' or ARGV[i] == 'save_after_ms')
  fields[i + 2], fields[i + 3] = '=' .. ARGV[i], ARGV[i + 1]
end
if not fit then
  return redis.error_reply('BADARG expected one key, a kind, a number of partitions, and pairs of setting and value')
end
local kind, partitions = unpack(redis.call('HMGET', KEYS[1], '=kind', '=partitions'))
local is_other = kind and (kind ~= ARGV[1] or partitions ~= ARGV[2])
if is_other or tonumber(KEYS[1]:match('/(%d+)}:calls$')) >= tonumber(ARGV[2]) then
  redis.call('HDEL', KEYS[1], '=now', '=before', '=began_at')
end
redis.call('HSET', KEYS[1], unpack(fields))
return { 'OK' }
