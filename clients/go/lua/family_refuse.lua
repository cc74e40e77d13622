-- family_refuse, revision 1
-- Leaves the reason why a daemon does not configure a family where family_epoch returns it.
--
-- KEYS
--   1 calls         hash      of a home partition: =refused, the reason; expires after 10 min
-- ARGV
--   1 reason        string    1 to 1000 bytes
-- REPLIES
--   {"OK"}                    clients learn it until the family is configured
--   {"CONFIGURED"}            the family is configured in this Redis; nothing done
-- ERRORS
--   BADARG                    another key, or no such reason; nothing done
-- REPEAT  safe
-- SINCE   0.1.0
-- CALLER  Partition::refuse in src/scripts/partition/settings.rs
-- VECTORS lua/vectors/family_refuse.json

local calls, reason = KEYS[1] or '', ARGV[1] or ''
local fits = #KEYS == 1 and calls:find('^cf1:{[^{}]+/%d+}:calls$') and #ARGV == 1
if not fits or reason == '' or #reason > 1000 then
  return redis.error_reply('BADARG expected calls, and a reason of 1 to 1000 bytes')
end
if redis.call('HEXISTS', calls, '=kind') == 1 then return { 'CONFIGURED' } end
redis.call('HSET', calls, '=refused', reason)
redis.call('PEXPIRE', calls, 600000)
return { 'OK' }
