-- family_want, revision 1
-- Announces a family that Redis does not know, so that a daemon configures it.
--
-- KEYS
--   1 wanted        set       cf1:wanted: NAMESPACE/FAMILY; expires 10 min after the last of these
--                             calls
-- ARGV
--   1 name          string    NAMESPACE/FAMILY, each of [a-z0-9_.-]{1,64}
-- REPLIES
--   {"OK"}                    a daemon takes the name several times a second, and configures the
--                             family if it is declared: ask for its epoch again
--   {"FULL"}                  10,000 other families are wanted, since no daemon takes them; nothing
--                             done
-- ERRORS
--   BADARG                    another key, or a name that no family can have; nothing done
-- REPEAT  safe
-- SINCE   0.1.0
-- CALLER  Counterfoil::announce in src/client/counterfoil/open.rs
-- VECTORS lua/vectors/family_want.json

local wanted, name = KEYS[1], ARGV[1] or ''
local namespace, family = name:match('^([a-z0-9_.%-]+)/([a-z0-9_.%-]+)$')
local fits = #KEYS == 1 and wanted == 'cf1:wanted' and #ARGV == 1
if not fits or not family or #namespace > 64 or #family > 64 then
  return redis.error_reply('BADARG expected the key cf1:wanted and NAMESPACE/FAMILY, names of '
    .. '[a-z0-9_.-]{1,64}')
end
if redis.call('SCARD', wanted) >= 10000 and redis.call('SMISMEMBER', wanted, name)[1] == 0 then
  return { 'FULL' }
end
redis.call('SADD', wanted, name)
redis.call('PEXPIRE', wanted, 600000)
return { 'OK' }
