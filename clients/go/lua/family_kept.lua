-- family_kept, revision 1
-- Lists the names of families that daemons opened by a pattern, one page of them a call.
--
-- KEYS
--   1 kept          zset      cf1:kept: NAMESPACE/FAMILY -> 0
-- ARGV
--   1 after         string    "" at first, then what the last page replied
--   2 limit         integer   how many names are looked at, 1 to 1000
-- REPLIES
--   {"OK", after, name...}    a page, without members that no family can have, whoever wrote them;
--                             after is "" with the last one
-- ERRORS
--   BADARG                    another key, or other arguments
-- REPEAT  safe: it only reads
-- SINCE   0.1.0
-- CALLER  Counterfoil::kept in src/client/counterfoil/kept.rs
-- VECTORS lua/vectors/family_kept.json

local kept, after, limit_text = KEYS[1], ARGV[1], ARGV[2]
local limit = tonumber(limit_text) or 0
local fits = #KEYS == 1 and kept == 'cf1:kept' and #ARGV == 2
if not fits or limit < 1 or limit > 1000 or limit % 1 ~= 0 then
  return redis.error_reply('BADARG expected the key cf1:kept, the last name or "", and 1 to 1000')
end
local from = after == '' and '-' or '(' .. after
local found = redis.call('ZRANGEBYLEX', kept, from, '+', 'LIMIT', '0', string.format('%.0f', limit))
local reply = { 'OK', found[limit] or '' }
for _, name in ipairs(found) do
  -- the daemon receives nothing but valid names, whatever another program wrote into the set
  local namespace, family = name:match('^([a-z0-9_.%-]+)/([a-z0-9_.%-]+)$')
  if family and #namespace <= 64 and #family <= 64 then reply[#reply + 1] = name end
end
return reply
