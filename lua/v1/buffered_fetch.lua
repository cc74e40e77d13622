-- buffered_fetch, revision 1
-- Hands out one page of a batch, once its rotation is durable. Content read earlier must not reach the database.
--
-- KEYS
--   1 batch         hash      id -> delta, never changed while it is there
--   2 meta          hash      incarnation, seq, rotated_at
-- ARGV
--   1 incarnation   hex16     with seq, the batch's id as buffered_rotate answered it
--   2 seq           integer   counts up from 1 within the incarnation
--   3 settle_ms     integer   how long after the cut it counts as durable; 0 for at once
--   4 cursor        cursor    "0" at first, then what the last page answered
--   5 count         integer   about how many ids a page has, 1 to 10000
--   6 now_ms        integer   "" for the server's clock; anything else is for tests
-- REPLIES
--   {"OK", cursor, {id, delta, ...}, size}  a page, and how many ids the batch has; cursor "0" with the last; an id may
--                             come twice, with the same delta; where ids are missing after the last page, because pages
--                             came from two servers, begin again at "0"
--   {"WAIT", ms}              not durable for so long
--   {"STALE"}                 that batch is not there (any more)
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

local wrong = bad_key('batch', 'meta')
if wrong then return wrong end
if #ARGV ~= 6 then return redis.error_reply('BADARG ' .. #ARGV .. ' arguments, expected 6') end
local batch, meta = KEYS[1], KEYS[2]
if #ARGV[1] ~= 16 or ARGV[1]:find('[^0-9a-f]') then
  return redis.error_reply('BADARG incarnation is ' .. shown(ARGV[1]) .. ', expected 16 hexadecimal digits')
end
wrong = bad_count('seq', ARGV[2]) or bad_count('settle_ms', ARGV[3]) or bad_cursor(ARGV[4])
  or bad_count('count', ARGV[5]) or (ARGV[6] ~= '' and bad_count('now_ms', ARGV[6]))
if wrong then return wrong end
local count = tonumber(ARGV[5])
if count < 1 or count > 10000 then
  return redis.error_reply('BADARG count is ' .. shown(ARGV[5]) .. ', expected 1 to 10000')
end

local clock = redis.call('TIME')
local now = ARGV[6] ~= '' and tonumber(ARGV[6]) or clock[1] * 1000 + math.floor(clock[2] / 1000)
local cut, state
cut, wrong = ask('HLEN', batch)
if wrong then return wrong end
state, wrong = ask('HMGET', meta, 'incarnation', 'seq', 'rotated_at')
if wrong then return wrong end
if cut == 0 or state[1] ~= ARGV[1] or state[2] ~= ARGV[2] or not state[3] then return { 'STALE' } end

local settled, settle_ms = now - tonumber(state[3]), tonumber(ARGV[3])
if settled < 0 then
  -- the clock stepped back: how long ago the cut was can no longer be told, so the time to settle starts again
  -- (HDEL deletes nothing: where memory is full a script may go on once it has written, and draining must work there)
  redis.call('HDEL', meta, '')
  redis.call('HSET', meta, 'rotated_at', string.format('%.0f', now))
  settled = 0
end
if settled < settle_ms then return { 'WAIT', settle_ms - settled } end
local page = redis.call('HSCAN', batch, ARGV[4], 'COUNT', ARGV[5])
return { 'OK', page[1], page[2], cut }
