-- series_get, revision 1
-- Reads windows.
--
-- KEYS
--   1 series:LABEL:NAME...  hash  slice's start in Unix seconds -> count; one window or more, up to 100
-- ARGV
--   1 now_ms        integer   "" for the server's clock; anything else is for tests
-- REPLIES
--   {"OK", now_ms, text...}   the server's time, a string; for each window "start count start count ..." as it lies
--                             there, in no order, "" if it is empty; slices that left the window may be among them
-- ERRORS
--   BADARG                    an argument is missing or wrong
--   BADKEY                    a key is misspelt or holds another type
-- REPEAT  safe: it only reads
-- SINCE   0.1.0

-- what an error quotes is short and ASCII: some clients end the connection over other bytes
local function shown(text) return (text:sub(1, 200):gsub('[^ -~]', '?')) end

-- what every key begins with, as the first one has it; nothing where that is misspelt
local function tag_of_keys()
  local tag, namespace, family, number = KEYS[1]:match('^(cf1:{([a-z0-9_.%-]+)/([a-z0-9_.%-]+)/(%d+)}:)')
  return tag and #namespace <= 64 and #family <= 64 and (number == '0' or number:byte() ~= 48) and tag
end

local function misspelt(i, kind)
  return redis.error_reply('BADKEY ' .. i .. ' of ' .. #KEYS .. ' is ' .. shown(KEYS[i]) .. ', expected '
    .. 'cf1:{NAMESPACE/FAMILY/PARTITION}:' .. shown(kind) .. ' with names of [a-z0-9_.-]{1,64}')
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

if #KEYS < 1 or #KEYS > 100 then
  return redis.error_reply('BADKEY ' .. #KEYS .. ' keys, expected 1 to 100')
end
local tag = tag_of_keys()
for i, key in ipairs(KEYS) do
  local label = tag and key:find(tag, 1, true) == 1 and key:match('^series:([0-9a-z]+):.', #tag + 1)
  if not label or #label > 12 then return misspelt(i, 'series:LABEL:NAME') end
end
if #ARGV ~= 1 then return redis.error_reply('BADARG ' .. #ARGV .. ' arguments, expected 1') end
local wrong = ARGV[1] ~= '' and bad_count('now_ms', ARGV[1])
if wrong then return wrong end

local clock = redis.call('TIME')
local now = ARGV[1] ~= '' and tonumber(ARGV[1]) or clock[1] * 1000 + math.floor(clock[2] / 1000)
local reply = { 'OK', string.format('%.0f', now) }
for i, key in ipairs(KEYS) do
  local window
  window, wrong = ask('HGETALL', key)
  if wrong then return wrong end
  reply[i + 2] = table.concat(window, ' ')
end
return reply
