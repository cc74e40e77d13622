-- buffered_release, revision 1
-- Drops a batch that is in the database, and the lease on it.
--
-- KEYS
--   1 batch         hash      id -> delta
--   2 meta          hash      incarnation, seq, batch_first_at, lease_owner, lease_until
-- ARGV
--   1 incarnation   hex16     with seq, the batch's id as buffered_rotate answered it
--   2 seq           integer   counts up from 1 within the incarnation
-- REPLIES
--   {"OK"}                    gone
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

local function ask(command, key, ...)
  local reply = redis.pcall(command, key, ...)
  if type(reply) == 'table' and reply.err then
    return nil, redis.error_reply('BADKEY ' .. key .. ' cannot be read: ' .. reply.err)
  end
  return reply
end

local wrong = bad_key('batch', 'meta')
if wrong then return wrong end
if #ARGV ~= 2 then return redis.error_reply('BADARG ' .. #ARGV .. ' arguments, expected 2') end
local batch, meta = KEYS[1], KEYS[2]
if #ARGV[1] ~= 16 or ARGV[1]:find('[^0-9a-f]') then
  return redis.error_reply('BADARG incarnation is ' .. shown(ARGV[1]) .. ', expected 16 hexadecimal digits')
end
wrong = bad_count('seq', ARGV[2])
if wrong then return wrong end

local cut, state
cut, wrong = ask('HLEN', batch)
if wrong then return wrong end
state, wrong = ask('HMGET', meta, 'incarnation', 'seq')
if wrong then return wrong end
if cut == 0 or state[1] ~= ARGV[1] or state[2] ~= ARGV[2] then return { 'STALE' } end

-- UNLINK frees a large hash in the background; DEL would hold everybody up
redis.call('UNLINK', batch)
redis.call('HDEL', meta, 'batch_first_at', 'lease_owner', 'lease_until')
return { 'OK' }
