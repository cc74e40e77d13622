-- buffered_trim, revision 1
-- Forgets producers that have been idle for long, one page of them a call.
--
-- KEYS
--   1 producers     hash      producer -> "SEQ AT_MS [INDEX:WORD ...]"
-- ARGV
--   1 idle_ms       integer   how long a producer must have been idle; a day is customary
--   2 cursor        cursor    "0" at first, then what the last page answered
--   3 count         integer   about how many producers a page has, 1 to 10000
--   4 now_ms        integer   "" for the server's clock; anything else is for tests
-- REPLIES
--   {"OK", cursor, trimmed}   cursor "0" with the last page; how many were forgotten
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

local function bad_cursor(text)
  if not text:find('^%d+$') or #text > 20 or (#text == 20 and text > '18446744073709551615') then
    return redis.error_reply('BADARG cursor is ' .. shown(text) .. ', expected a cursor')
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
if #ARGV ~= 4 then return redis.error_reply('BADARG ' .. #ARGV .. ' arguments, expected 4') end
wrong = bad_count('idle_ms', ARGV[1]) or bad_cursor(ARGV[2]) or bad_count('count', ARGV[3])
  or (ARGV[4] ~= '' and bad_count('now_ms', ARGV[4]))
if wrong then return wrong end
local count = tonumber(ARGV[3])
if count < 1 or count > 10000 then
  return redis.error_reply('BADARG count is ' .. shown(ARGV[3]) .. ', expected 1 to 10000')
end

local clock = redis.call('TIME')
local now = ARGV[4] ~= '' and tonumber(ARGV[4]) or clock[1] * 1000 + math.floor(clock[2] / 1000)
local page
page, wrong = ask('HSCAN', KEYS[1], ARGV[2], 'COUNT', ARGV[3])
if wrong then return wrong end

local trimmed = 0
for i = 1, #page[2], 2 do
  local at = tonumber(page[2][i + 1]:match('^%d+ (%d+)'))
  if not at or now - at >= tonumber(ARGV[1]) then
    trimmed = trimmed + redis.call('HDEL', KEYS[1], page[2][i])
  end
end
return { 'OK', page[1], trimmed }
