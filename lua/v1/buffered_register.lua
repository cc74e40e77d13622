-- buffered_register, revision 1
-- Makes a writer known before its first add, so that an unknown producer can only mean that Redis lost its memory.
--
-- KEYS
--   1 producers     hash      producer -> "SEQ AT_MS [INDEX:WORD ...]"
-- ARGV
--   1 producer      string    random name of the writer, [0-9A-Za-z_-]{1,64}
--   2 now_ms        integer   "" for the server's clock; anything else is for tests
-- REPLIES
--   {"OK", seq}               known; the number of its last call, a string, "0" for a new one
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

local function bad_count(name, text)
  if (text ~= '0' and not text:find('^[1-9]%d*$')) or #text > 15 then
    return redis.error_reply('BADARG ' .. name .. ' is ' .. shown(text) .. ', expected an integer of up to 15 digits')
  end
end

local function ask(command, key, ...)
  local reply = redis.pcall(command, key, ...)
  if type(reply) == 'table' and reply.err then
    return nil, redis.error_reply('BADKEY ' .. key .. ' cannot be read: ' .. reply.err)
  end
  return reply
end

local wrong = bad_key('producers')
if wrong then return wrong end
if #ARGV ~= 2 then return redis.error_reply('BADARG ' .. #ARGV .. ' arguments, expected 2') end
local producers, producer = KEYS[1], ARGV[1]
if producer == '' or #producer > 64 or producer:find('[^0-9A-Za-z_-]') then
  return redis.error_reply('BADARG producer is ' .. shown(producer) .. ', expected [0-9A-Za-z_-]{1,64}')
end
wrong = ARGV[2] ~= '' and bad_count('now_ms', ARGV[2])
if wrong then return wrong end

local clock = redis.call('TIME')
local now = ARGV[2] ~= '' and tonumber(ARGV[2]) or clock[1] * 1000 + math.floor(clock[2] / 1000)
local last
last, wrong = ask('HGET', producers, producer)
if wrong then return wrong end

if last then return { 'OK', last:match('^%d+') } end
redis.call('HSET', producers, producer, '0 ' .. string.format('%.0f', now))
return { 'OK', '0' }
