-- activity_now, revision 1
-- Answers the views and the distinct visitors of the window.
--
-- KEYS
--   1 views:STRIPE:PAGE...     hash   layer -> views in it
--   2 visitors:STRIPE:PAGE...  zset   visitor -> ms: when it was seen last; then both keys of the next place, of 100 at
--                                     most
-- ARGV
--   1 now_ms        integer   "" for the server's clock; anything else is for tests
--   2 layer_ms      integer   how long a layer lasts, 1 to 3600000; a layer's number is floor(now / layer_ms)
--   3 layers        integer   how many layers the window has, the current one included, 1 to 1000
-- REPLIES
--   {"OK", views, visitors...}  integers, for each place both; 0 where nobody was
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

-- "STRIPE:PAGE" and the page alone, by the key of its views; nothing where it is misspelt
local function place_of(tag, key)
  local head = tag .. 'views:'
  local place, stripe, page = key:match('^((%d+):(.+))$', #head + 1)
  if place and key:sub(1, #head) == head and (stripe == '0' or stripe:byte() ~= 48) then return place, page end
end

local function bad_count(name, text)
  if (text ~= '0' and not text:find('^[1-9]%d*$')) or #text > 15 then
    return redis.error_reply('BADARG ' .. name .. ' is ' .. shown(text) .. ', expected an integer of up to 15 digits')
  end
end

local function bad_number(name, text, least, most)
  local wrong = bad_count(name, text)
  if wrong then return wrong end
  if tonumber(text) < least or tonumber(text) > most then
    return redis.error_reply('BADARG ' .. name .. ' is ' .. text .. ', expected ' .. least .. ' to ' .. most)
  end
end

local function ask(command, key, ...)
  local reply = redis.pcall(command, key, ...)
  if type(reply) == 'table' and reply.err then
    return nil, redis.error_reply('BADKEY ' .. key .. ' cannot be read: ' .. reply.err)
  end
  return reply
end

-- every well-formed sequence becomes one ASCII letter, so that its neighbours cannot join to a new one
local function is_utf8(text)
  for _, sequence in ipairs({ '[\194-\223][\128-\191]', '\224[\160-\191][\128-\191]',
    '[\225-\236\238\239][\128-\191][\128-\191]', '\237[\128-\159][\128-\191]', '\240[\144-\191][\128-\191][\128-\191]',
    '[\241-\243][\128-\191][\128-\191][\128-\191]', '\244[\128-\143][\128-\191][\128-\191]' }) do
    text = text:gsub(sequence, 'a')
  end
  return not text:find('[\128-\255]')
end

local function bad_page(page)
  if page == '' or #page > 200 then return 'page has ' .. #page .. ' bytes, expected 1 to 200' end
  if page:find('[\128-\255]') and not is_utf8(page) then return 'page is not UTF-8' end
end

if #KEYS < 2 or #KEYS > 200 or #KEYS % 2 == 1 then
  return redis.error_reply('BADKEY ' .. #KEYS .. ' keys, expected two for each of 1 to 100 places')
end
local tag = tag_of_keys()
for k = 1, #KEYS, 2 do
  local place, page
  if tag then place, page = place_of(tag, KEYS[k]) end
  if not place or #page > 200 or (page:find('[\128-\255]') and bad_page(page)) then
    return misspelt(k, 'views:STRIPE:PAGE')
  end
  if KEYS[k + 1] ~= tag .. 'visitors:' .. place then return misspelt(k + 1, 'visitors:' .. place) end
end
if #ARGV ~= 3 then return redis.error_reply('BADARG ' .. #ARGV .. ' arguments, expected 3') end
local wrong = (ARGV[1] ~= '' and bad_count('now_ms', ARGV[1]))
  or bad_number('layer_ms', ARGV[2], 1, 3600000) or bad_number('layers', ARGV[3], 1, 1000)
if wrong then return wrong end

local clock = redis.call('TIME')
local now = ARGV[1] ~= '' and tonumber(ARGV[1]) or clock[1] * 1000 + math.floor(clock[2] / 1000)
local layer_ms = tonumber(ARGV[2])
local gone = math.floor(now / layer_ms) - ARGV[3]
local since = string.format('%.0f', (gone + 1) * layer_ms)

-- Somebody's own fields, and layers that left the window, do not count.
local function views_of(fields)
  local views = 0
  for i = 1, #fields, 2 do
    if (tonumber(fields[i]) or gone) > gone then views = views + (tonumber(fields[i + 1]) or 0) end
  end
  return views
end

local reply = { 'OK' }
for k = 1, #KEYS, 2 do
  local fields, visitors
  fields, wrong = ask('HGETALL', KEYS[k])
  if wrong then return wrong end
  visitors, wrong = ask('ZCOUNT', KEYS[k + 1], since, '+inf')
  if wrong then return wrong end
  reply[#reply + 1], reply[#reply + 2] = views_of(fields), visitors
end
return reply
