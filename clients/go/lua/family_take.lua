-- family_take, revision 1
-- Takes the names of families that clients announced by family_want.
--
-- KEYS
--   1 wanted        set       cf1:wanted: NAMESPACE/FAMILY
-- ARGV
--   1 most          integer   how many to take at most, 0 to 10000; 0 tries the permission only
-- REPLIES
--   {"OK", name...}           taken; a member that no family can have is dropped, whoever wrote it
-- ERRORS
--   BADARG                    another key, or another number; nothing done
-- REPEAT  safe: clients announce a name again until its family is configured
-- SINCE   0.1.0
-- CALLER  Counterfoil::take_wanted in src/client/counterfoil/open.rs
-- VECTORS lua/vectors/family_take.json

local wanted, most = KEYS[1], tonumber(ARGV[1])
local fits = #KEYS == 1 and wanted == 'cf1:wanted' and #ARGV == 1 and most
if not fits or most < 0 or most > 10000 or most % 1 ~= 0 then
  return redis.error_reply('BADARG expected the key cf1:wanted, and an integer up to 10000')
end
local reply = { 'OK' }
for _, name in ipairs(redis.call('SPOP', wanted, string.format('%.0f', most))) do
  -- the daemon receives nothing but valid names, whatever another program wrote into the set
  local namespace, family = name:match('^([a-z0-9_.%-]+)/([a-z0-9_.%-]+)$')
  if family and #namespace <= 64 and #family <= 64 then reply[#reply + 1] = name end
end
return reply
