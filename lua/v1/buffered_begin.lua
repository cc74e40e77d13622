-- buffered_begin, revision 1
-- Gives a partition that never cut a batch its incarnation, so that a reader has something to compare with the ledger.
--
-- KEYS
--   1 meta          hash      incarnation, seq
-- ARGV
--   1 incarnation   hex16     random, 16 hexadecimal digits, a new one for each call; kept when there is none
-- REPLIES
--   {"OK", incarnation, seq}  what the partition has now
-- ERRORS
--   BADARG                    an argument is missing or wrong; nothing done
--   BADKEY                    a key is misspelt or holds another type; nothing done
-- REPEAT  safe
-- SINCE   0.1.0

-- what an error quotes is short and ASCII: some clients end the connection over other bytes
local function shown(text) return (text:sub(1, 200):gsub('[^ -~]', '?')) end

local function bad_key(...)
  if #KEYS ~= select('#', ...) then
    return redis.error_reply('BADKEY ' .. #KEYS .. ' keys, expected ' .. select('#', ...))
  end
  local tag, namespace, family, number = KEYS[1]:match('^(cf1:{([a-z0-9_.%-]+)/([a-z0-9_.%-]+)/(%d+)}:)')
  local good = tag and #namespace <= 64 and #family <= 64 and (number == '0' or number:byte() ~= 48)
  for i = 1, #KEYS do
    local kind = select(i, ...)
    if not good or KEYS[i] ~= tag .. kind then
      return redis.error_reply('BADKEY ' .. i .. ' of ' .. #KEYS .. ' is ' .. shown(KEYS[i]) .. ', expected '
        .. 'cf1:{NAMESPACE/FAMILY/PARTITION}:' .. kind .. ' with names of [a-z0-9_.-]{1,64}')
    end
  end
end

local function ask(command, key, ...)
  local reply = redis.pcall(command, key, ...)
  if type(reply) == 'table' and reply.err then
    return nil, redis.error_reply('BADKEY ' .. key .. ' cannot be read: ' .. reply.err)
  end
  return reply
end

local wrong = bad_key('meta')
if wrong then return wrong end
if #ARGV ~= 1 then return redis.error_reply('BADARG ' .. #ARGV .. ' arguments, expected 1') end
local meta, incarnation = KEYS[1], ARGV[1]
if #incarnation ~= 16 or incarnation:find('[^0-9a-f]') then
  return redis.error_reply('BADARG incarnation is ' .. shown(incarnation) .. ', expected 16 hexadecimal digits')
end

local state
state, wrong = ask('HMGET', meta, 'incarnation', 'seq')
if wrong then return wrong end

if state[1] then return { 'OK', state[1], state[2] or '0' } end
redis.call('HSET', meta, 'incarnation', incarnation)
return { 'OK', incarnation, '0' }
