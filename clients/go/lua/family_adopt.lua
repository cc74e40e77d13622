-- family_adopt, revision 1
-- Deletes keys of a family whose hits went to another database, with what is pending.
--
-- KEYS
--   1 calls         hash      of the home partition: =database, the id of the database
--   2 key           any       the keys to delete, up to 4000; calls is one of the last
-- ARGV
--   1 database      string    id of the database that takes over
-- REPLIES
--   {"OK", deleted}           how many of the keys there were
--   {"OWN"}                   the family belongs to this database or to none; nothing done
-- ERRORS
--   BADARG                    an argument is missing or wrong; nothing done
-- REPEAT  safe
-- SINCE   0.1.0
-- CALLER  Partition::adopt in src/scripts/partition/settings.rs
-- VECTORS lua/vectors/family_adopt.json

local calls, database = KEYS[1], ARGV[1]
if #KEYS < 2 or #KEYS > 4001 or #ARGV ~= 1 or database == '' then
  return redis.error_reply('BADARG expected calls and keys to delete, and the id of a database')
end
local own_database = redis.call('HGET', calls, '=database') or ''
if own_database == '' or own_database == database then return { 'OWN' } end
return { 'OK', redis.call('UNLINK', unpack(KEYS, 2)) }
