-- family_exists, revision 1
-- Counts how many of these keys exist, in one Redis at one moment.
--
-- KEYS
--   1 key           any       of a family; then the next one, up to 1000
-- ARGV
-- REPLIES
--   {"OK", count}             a key that is named twice counts twice
-- ERRORS
--   BADARG                    no key, too many of them, or an argument
-- REPEAT  safe: it only reads
-- SINCE   0.1.0
-- CALLER  count_existing in src/scripts/bundle.rs
-- VECTORS lua/vectors/family_exists.json

if #KEYS < 1 or #KEYS > 1000 or #ARGV ~= 0 then
  return redis.error_reply('BADARG expected 1 to 1000 keys and no argument')
end
-- A script, since a client may send a plain EXISTS to a replica, or to several nodes.
return { 'OK', redis.call('EXISTS', unpack(KEYS)) }
