-- buffered_rotate, revision 1
-- Cuts the buffer off as the partition's one batch, or answers the batch that is there, and takes the lease on it.
--
-- KEYS
--   1 buffer        hash      id -> pending delta
--   2 batch         hash      id -> delta, never changed while it is there
--   3 meta          hash      incarnation, seq, rotated_at, batch_first_at, lease_owner, lease_until, hits, first_at
-- ARGV
--   1 incarnation   hex16     random, 16 hexadecimal digits; kept when the partition has none
--   2 owner         string    random name of the caller for the lease, [0-9A-Za-z_-]{1,64}; "" takes and heeds none
--   3 lease_ms      integer   how long the lease lasts; somebody else's that would last longer than this and than
--                             a minute is from before the clock stepped back, and is not heeded
--   4 sync_hits     integer   cut only if there were so many hits; 0 cuts whatever is there
--   5 sync_ms       integer   ... or the last rotation is this long ago
--   6 now_ms        integer   "" for the server's clock; anything else is for tests
-- REPLIES
--   {"OK", incarnation, seq, ids, settled_ms, oldest_ms}    cut just now: the batch's id, its number of ids, how long
--                             ago it was cut, and how long ago its oldest hit was counted
--   {"HELD", incarnation, seq, ids, settled_ms, oldest_ms}  the batch that was there already
--   {"LEASED", ms}            there is a batch, and somebody else has the lease for so long
--   {"EARLY", ms}             no sync is due for so long
--   {"EMPTY"}                 nothing is pending
-- ERRORS
--   BADARG                    an argument is missing or wrong; nothing done
--   BADKEY                    a key is misspelt or holds another type; nothing done
--   BADSTATE                  there is a batch but its id is gone from meta: somebody deleted fields; nothing done
-- REPEAT  safe: the second call answers HELD
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

local wrong = bad_key('buffer', 'batch', 'meta')
if wrong then return wrong end
if #ARGV ~= 6 then return redis.error_reply('BADARG ' .. #ARGV .. ' arguments, expected 6') end
local buffer, batch, meta, owner = KEYS[1], KEYS[2], KEYS[3], ARGV[2]
if #ARGV[1] ~= 16 or ARGV[1]:find('[^0-9a-f]') then
  return redis.error_reply('BADARG incarnation is ' .. shown(ARGV[1]) .. ', expected 16 hexadecimal digits')
end
if #owner > 64 or owner:find('[^0-9A-Za-z_-]') then
  return redis.error_reply('BADARG owner is ' .. shown(owner) .. ', expected "" or [0-9A-Za-z_-]{1,64}')
end
wrong = bad_count('lease_ms', ARGV[3]) or bad_count('sync_hits', ARGV[4]) or bad_count('sync_ms', ARGV[5])
  or (ARGV[6] ~= '' and bad_count('now_ms', ARGV[6]))
if wrong then return wrong end
local lease_ms, sync_hits, sync_ms = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])

local clock = redis.call('TIME')
local now = ARGV[6] ~= '' and tonumber(ARGV[6]) or clock[1] * 1000 + math.floor(clock[2] / 1000)
local waiting, cut, state
waiting, wrong = ask('HLEN', buffer)
if wrong then return wrong end
cut, wrong = ask('HLEN', batch)
if wrong then return wrong end
state, wrong = ask('HMGET', meta, 'incarnation', 'seq', 'rotated_at', 'batch_first_at', 'hits', 'first_at',
  'lease_owner', 'lease_until')
if wrong then return wrong end
local incarnation, seq, rotated_at = state[1], tonumber(state[2] or 0), tonumber(state[3] or nil)

-- ages are never negative, also where the clock stepped back
local function age(since) return math.max(0, now - tonumber(since or now)) end

local status, ids, oldest = 'HELD', cut, state[4]
if cut > 0 then
  if not incarnation or seq == 0 or not rotated_at then
    return redis.error_reply('BADSTATE ' .. batch .. ' has no id: fields of ' .. meta .. ' were deleted')
  end
  local left = tonumber(state[8] or 0) - now
  if owner ~= '' and state[7] and state[7] ~= owner and left > 0 and left <= math.max(lease_ms, 60000) then
    return { 'LEASED', left }
  end
else
  if waiting == 0 then return { 'EMPTY' } end
  local since = rotated_at and now - rotated_at
  if since and since >= 0 and since < sync_ms and tonumber(state[5] or 0) < sync_hits then
    return { 'EARLY', sync_ms - since }
  end
  status, ids, oldest = 'OK', waiting, state[6]
  incarnation, seq, rotated_at = incarnation or ARGV[1], seq + 1, now
end

-- deletes nothing: where memory is full a script may go on once it has written, and draining must work there
redis.call('HDEL', meta, '')
if status == 'OK' then
  -- the id before the batch: half a transaction, as a torn append-only file can leave it, must not name a batch wrongly
  redis.call('HSET', meta, 'incarnation', incarnation, 'seq', string.format('%.0f', seq), 'rotated_at',
    string.format('%.0f', now), 'batch_first_at', oldest or string.format('%.0f', now), 'hits', '0')
  redis.call('RENAME', buffer, batch)
end
if owner ~= '' then
  redis.call('HSET', meta, 'lease_owner', owner, 'lease_until', string.format('%.0f', now + lease_ms))
end
return { status, incarnation, string.format('%.0f', seq), ids, age(rotated_at), age(oldest) }
