-- buffered_read, revision 1
-- Reads what ids have pending, together with the id of the batch, for an exact read against the database.
--
-- KEYS
--   1 buffer        hash      id -> pending delta
--   2 batch         hash      id -> delta
--   3 meta          hash      incarnation, seq
--   4 [open]        hash      kept id -> count of a slice that is not over; optional: pending, as what the buffer has
-- ARGV
--   1 id            id        1 to 255 bytes; then the next one, up to 1000
-- REPLIES
--   {"OK", incarnation, seq, in_flight, batch_delta, buffer_delta, ...}  "" and "0" where nothing was ever cut;
--                             in_flight is 1 while the batch (incarnation, seq) is there; then two strings an id
-- ERRORS
--   BADARG                    an argument is missing or wrong
--   BADKEY                    a key is misspelt or holds another type
--   BADSTATE                  open and buffer hold too much of an id to be added up exactly
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

local function ask(command, key, ...)
  local reply = redis.pcall(command, key, ...)
  if type(reply) == 'table' and reply.err then
    return nil, redis.error_reply('BADKEY ' .. key .. ' cannot be read: ' .. reply.err)
  end
  return reply
end

-- Lua's numbers are exact below 2^53 only
local function is_exact(sum) return sum > -9007199254740992 and sum < 9007199254740992 end

local wrong = bad_key(unpack({ 'buffer', 'batch', 'meta', 'open' }, 1, #KEYS == 4 and 4 or 3))
if wrong then return wrong end
-- unpack() below has room for some thousands
if #ARGV < 1 or #ARGV > 1000 then
  return redis.error_reply('BADARG ' .. #ARGV .. ' ids, expected 1 to 1000')
end
for i, id in ipairs(ARGV) do
  if id == '' or #id > 255 then
    return redis.error_reply('BADARG id ' .. i .. ' has ' .. #id .. ' bytes, expected 1 to 255')
  end
end

local state, cut, waiting
state, wrong = ask('HMGET', KEYS[3], 'incarnation', 'seq')
if wrong then return wrong end
cut, wrong = ask('HMGET', KEYS[2], unpack(ARGV))
if wrong then return wrong end
waiting, wrong = ask('HMGET', KEYS[1], unpack(ARGV))
if wrong then return wrong end
if KEYS[4] then
  local still_open
  still_open, wrong = ask('HMGET', KEYS[4], unpack(ARGV))
  if wrong then return wrong end
  for i = 1, #ARGV do
    local sum = waiting[i] and still_open[i] and waiting[i] + still_open[i]
    if sum and not (is_exact(sum) and is_exact(tonumber(waiting[i])) and is_exact(tonumber(still_open[i]))) then
      return redis.error_reply('BADSTATE id ' .. i .. ' has too much in buffer and open to be added up')
    end
    waiting[i] = sum and string.format('%.0f', sum) or waiting[i] or still_open[i]
  end
end
local reply = { 'OK', state[1] or '', state[2] or '0', redis.call('EXISTS', KEYS[2]) }
for i = 1, #ARGV do
  reply[#reply + 1] = cut[i] or '0'
  reply[#reply + 1] = waiting[i] or '0'
end
return reply
