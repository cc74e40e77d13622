-- series_close, revision 1
-- Hands what can no longer change on to the database: it joins the buffer, and goes the way of what is counted there.
--
-- KEYS
--   1 open          hash      kept id -> count of a slice that is not over, and is to be kept in the database
--   2 agenda        zset      kept id -> ms: when its slice is over; every id in open is on it
--   3 buffer        hash      id -> pending delta
--   4 meta          hash      hits, first_at
-- ARGV
--   1 limit         integer   how many ids at most, 1 to 1000
--   2 now_ms        integer   "" for the server's clock; anything else is for tests
-- REPLIES
--   {"OK", moved, next_ms}    how many ids joined the buffer; in how many ms the next slice is over, an integer, 0 for
--                             at once, or "" if there is none. A count that cannot join, since the sum would leave i64,
--                             stays, and is looked at again a minute later
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

local wrong = bad_key('open', 'agenda', 'buffer', 'meta')
if wrong then return wrong end
if #ARGV ~= 2 then return redis.error_reply('BADARG ' .. #ARGV .. ' arguments, expected 2') end
wrong = bad_count('limit', ARGV[1]) or (ARGV[2] ~= '' and bad_count('now_ms', ARGV[2]))
if wrong then return wrong end
local limit = tonumber(ARGV[1])
if limit < 1 or limit > 1000 then
  return redis.error_reply('BADARG limit is ' .. ARGV[1] .. ', expected 1 to 1000')
end
local open, agenda, buffer, meta = KEYS[1], KEYS[2], KEYS[3], KEYS[4]

local clock = redis.call('TIME')
local now = ARGV[2] ~= '' and tonumber(ARGV[2]) or clock[1] * 1000 + math.floor(clock[2] / 1000)
local now_ms = string.format('%.0f', now)
local due, held, hits, counts
due, wrong = ask('ZRANGEBYSCORE', agenda, '-inf', now_ms, 'LIMIT', '0', ARGV[1])
if wrong then return wrong end
held, wrong = ask('HLEN', buffer)
if wrong then return wrong end
hits, wrong = ask('HGET', meta, 'hits')
if wrong then return wrong end
-- Redis asks for one id at least
counts, wrong = ask('HMGET', open, '', unpack(due))
if wrong then return wrong end

local moved = 0
if due[1] then
  -- deletes nothing: where memory is full a script may go on once it has written, and draining must work there
  redis.call('HDEL', meta, '')
  -- Redis keeps up to 512 ids as a list, and looks for each from the start; a field longer than any id makes it a table
  local longer = held < 64 and held + #due >= 64 and string.rep(' ', 256)
  if longer then redis.call('HSET', buffer, longer, '0') end
  for i, id in ipairs(due) do
    local count = counts[i + 1]
    local sum = count and redis.pcall('HINCRBY', buffer, id, count)
    if type(sum) == 'table' then
      redis.call('ZADD', agenda, string.format('%.0f', now + 60000), id)
    else
      redis.call('ZREM', agenda, id)
      if sum then
        redis.call('HDEL', open, id)
        moved = moved + 1
      end
    end
  end
  if longer then redis.call('HDEL', buffer, longer) end
end
if moved > 0 then
  if tonumber(hits or 0) == 0 then redis.call('HSET', meta, 'first_at', now_ms) end
  redis.call('HINCRBY', meta, 'hits', moved)
end
local next_one = redis.call('ZRANGE', agenda, '0', '0', 'WITHSCORES')
return { 'OK', moved, next_one[2] and math.max(0, tonumber(next_one[2]) - now) or '' }
