-- family_try, revision 1
-- Tries commands, and returns those that the user cannot execute.
--
-- KEYS
--   1 key           any       for the commands to act on; in the family, so that its rules apply
-- ARGV
--   1 command       bytes     its words, separated by spaces, with "@" for the key; then the next
--                             one, up to 1000
-- REPLIES
--   {"OK", name, ...}         in lower case, of the commands that Redis denies the user or does not
--                             know, as after rename-command
-- ERRORS
--   BADARG                    other than one key, or no command, too many or an empty one
-- REPEAT  safe if the commands are
-- SINCE   0.1.0
-- CALLER  missing in src/admin/access.rs
-- VECTORS lua/vectors/family_try.json

local key = KEYS[1]
if #KEYS ~= 1 or #ARGV < 1 or #ARGV > 1000 then
  return redis.error_reply('BADARG expected a key and 1 to 1000 commands')
end
for i, command in ipairs(ARGV) do
  if not command:find('%S') then
    return redis.error_reply('BADARG command ' .. i .. ' is empty')
  end
end
local reply = { 'OK' }
for _, command in ipairs(ARGV) do
  local words = {}
  for word in command:gmatch('%S+') do
    words[#words + 1] = word == '@' and key or word
  end
  -- Inside of a script, since a client may send a plain read to a replica, which has rules of its
  -- own.
  local result = redis.pcall(unpack(words))
  local text = type(result) == 'table' and result.err or ''
  -- most servers give these errors no code of their own, so their texts show what they are
  if text:find('ACL failure in script') or text:find('The user executing the script')
    or text:find('^NOPERM ') or text:find('Unknown .*command called from ') then
    reply[#reply + 1] = words[1]:lower()
  end
end
return reply
