-- cached_due, revision 1
-- Names the counters whose time has come.
--
-- KEYS
--   1 agenda        zset      id -> ms: when something is next to be done about it
-- ARGV
--   1 count         integer   how many at most, 1 to 10000
--   2 horizon_ms    integer   no plan lies further ahead: one that does is from before the clock stepped back, and due
--   3 now_ms        integer   "" for the server's clock; anything else is for tests
-- REPLIES
--   {"OK", next_ms, id...}    those that are due, the oldest first, then those beyond the horizon; next_ms is in how
--                             many ms the next one that is not named here is due, an integer, 0 for at once, or "" if
--                             there is none
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

local wrong = bad_key('agenda')
if wrong then return wrong end
if #ARGV ~= 3 then return redis.error_reply('BADARG ' .. #ARGV .. ' arguments, expected 3') end
wrong = bad_count('count', ARGV[1]) or bad_count('horizon_ms', ARGV[2])
  or (ARGV[3] ~= '' and bad_count('now_ms', ARGV[3]))
if wrong then return wrong end
local count = tonumber(ARGV[1])
if count < 1 or count > 10000 then
  return redis.error_reply('BADARG count is ' .. shown(ARGV[1]) .. ', expected 1 to 10000')
end

local clock = redis.call('TIME')
local now = ARGV[3] ~= '' and tonumber(ARGV[3]) or clock[1] * 1000 + math.floor(clock[2] / 1000)
local agenda, beyond = KEYS[1], string.format('%.0f', now + tonumber(ARGV[2]))
local now_ms = string.format('%.0f', now)
local due
-- one more than is named tells whether another one is due
due, wrong = ask('ZRANGEBYSCORE', agenda, '-inf', now_ms, 'LIMIT', '0', count + 1)
if wrong then return wrong end
local far = redis.call('ZRANGEBYSCORE', agenda, '(' .. beyond, '+inf', 'LIMIT', '0', count + 1 - #due)
for i = 1, #far do due[#due + 1] = far[i] end

local reply = { 'OK', 0 }
for i = 1, math.min(#due, count) do reply[2 + i] = due[i] end
if #due <= count then
  local ahead = redis.call('ZRANGEBYSCORE', agenda, '(' .. now_ms, beyond, 'WITHSCORES', 'LIMIT', '0', '1')
  reply[2] = ahead[2] and tonumber(ahead[2]) - now or ''
end
return reply
