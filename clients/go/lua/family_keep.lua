-- family_keep, revision 1
-- Keeps the names of families that a daemon opens by a pattern, in case the database loses them.
--
-- KEYS
--   1 kept          zset      cf1:kept: NAMESPACE/FAMILY -> 0
-- ARGV
--   1 keeps         integer   1 keeps the names, 0 forgets them
--   2 name...       string    NAMESPACE/FAMILY; 1 to 1000 of them
-- REPLIES
--   {"OK"}                    kept, or forgotten
-- ERRORS
--   BADARG                    another key, or other arguments; nothing done
-- REPEAT  safe
-- SINCE   0.1.0
-- CALLER  Counterfoil::keep in src/client/counterfoil/kept.rs
-- VECTORS lua/vectors/family_keep.json

local kept, keeps = KEYS[1], ARGV[1]
local fits = #KEYS == 1 and kept == 'cf1:kept' and (keeps == '0' or keeps == '1')
if not fits or #ARGV < 2 or #ARGV > 1001 then
  return redis.error_reply('BADARG expected the key cf1:kept, 0 or 1, and 1 to 1000 names')
end
for i = 2, #ARGV do
  if keeps == '1' then
    redis.call('ZADD', kept, '0', ARGV[i])
  else
    redis.call('ZREM', kept, ARGV[i])
  end
end
return { 'OK' }
