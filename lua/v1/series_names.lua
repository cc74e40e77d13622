-- series_names, revision 1
-- Lists the names with anything in a window, in the order of their bytes, one page of them a call.
--
-- KEYS
--   1 names         zset      name -> 0: those with anything in a window
--   2 idle          zset      name -> ms: when the last slice of it has left every window
-- ARGV
--   1 prefix        string    what the names begin with; "" for all
--   2 after         string    "" at first, then what the last page answered
--   3 limit         integer   how many names are looked at, 1 to 1000
--   4 now_ms        integer   "" for the server's clock; anything else is for tests
-- REPLIES
--   {"OK", after, name...}    a page, without those that are idle by now; after is "" with the last one
-- ERRORS
--   BADARG                    an argument is missing or wrong
--   BADKEY                    a key is misspelt or holds another type
-- REPEAT  safe: it only reads
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

local wrong = bad_key('names', 'idle')
if wrong then return wrong end
if #ARGV ~= 4 then return redis.error_reply('BADARG ' .. #ARGV .. ' arguments, expected 4') end
local names, idle, prefix, after = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
if after ~= '' and after:sub(1, #prefix) ~= prefix then
  return redis.error_reply('BADARG after is ' .. shown(after) .. ', expected "" or a name that begins with the prefix')
end
wrong = bad_count('limit', ARGV[3]) or (ARGV[4] ~= '' and bad_count('now_ms', ARGV[4]))
if wrong then return wrong end
local limit = tonumber(ARGV[3])
if limit < 1 or limit > 1000 then
  return redis.error_reply('BADARG limit is ' .. ARGV[3] .. ', expected 1 to 1000')
end

local clock = redis.call('TIME')
local now = ARGV[4] ~= '' and tonumber(ARGV[4]) or clock[1] * 1000 + math.floor(clock[2] / 1000)
local from = after ~= '' and '(' .. after or '[' .. prefix
local found, times
-- no UTF-8 has a byte 255
found, wrong = ask('ZRANGEBYLEX', names, from, '(' .. prefix .. '\255', 'LIMIT', '0', ARGV[3])
if wrong then return wrong end
times, wrong = ask('ZMSCORE', idle, prefix, unpack(found))
if wrong then return wrong end

local reply = { 'OK', found[limit] or '' }
for i, name in ipairs(found) do
  -- the first time is that of the prefix: Redis asks for one name at least
  if times[i + 1] and tonumber(times[i + 1]) > now then reply[#reply + 1] = name end
end
return reply
