-- buffered_rotate, revision 1
-- Cuts the buffer off as the partition's one batch, or returns the batch that is there, and takes the lease on it.
--
-- KEYS
--   1 buffer        hash      id -> pending delta
--   2 batch         hash      id -> delta, never changed while it is there
--   3 meta          hash      incarnation, seq, rotated_at, batch_first_at, lease_owner, lease_until, hits, first_at,
--                             hits_before: the hits of all batches that were cut
-- ARGV
--   1 incarnation   hex16     random, 16 hexadecimal digits in lower case; kept when the partition has none
--   2 owner         string    random name of the caller for the lease; "" takes and heeds none
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
--   BADSTATE                  there is a batch but its id is gone from meta: somebody deleted fields; nothing done
-- REPEAT  safe: the second call returns HELD
-- SINCE   0.1.0

local buffer, batch, meta, owner = KEYS[1], KEYS[2], KEYS[3], ARGV[2]
local lease_ms, sync_hits, sync_ms = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
if #KEYS ~= 3 or #ARGV ~= 6 or #ARGV[1] ~= 16 or ARGV[1]:find('[^0-9a-f]')
  or not (lease_ms and sync_hits and sync_ms) then
  return redis.error_reply('BADARG expected buffer, batch and meta, an incarnation of 16 hexadecimal digits, owner, '
    .. 'lease_ms, sync_hits, sync_ms and now_ms')
end

local time = redis.call('TIME')
local now = tonumber(ARGV[6]) or time[1] * 1000 + math.floor(time[2] / 1000)
local waiting, cut = redis.call('HLEN', buffer), redis.call('HLEN', batch)
local state = redis.call('HMGET', meta, 'incarnation', 'seq', 'rotated_at', 'batch_first_at', 'hits', 'first_at',
  'lease_owner', 'lease_until', 'hits_before')
local incarnation, seq, rotated_at = state[1], state[2] or '0', state[3]

-- Redis writes some numbers as 1.7e+12
local function text(number) return string.format('%.0f', number) end
-- never negative, also where the clock stepped back
local function age(since) return math.max(0, now - (since or now)) end

local status, ids, oldest = 'HELD', cut, state[4]
if cut > 0 then
  if not incarnation or seq == '0' or not rotated_at then
    return redis.error_reply('BADSTATE ' .. batch .. ' has no id: fields of ' .. meta .. ' were deleted')
  end
  local left = (state[8] or 0) - now
  if owner ~= '' and state[7] and state[7] ~= owner and left > 0 and left <= math.max(lease_ms, 60000) then
    return { 'LEASED', left }
  end
else
  if waiting == 0 then return { 'EMPTY' } end
  local since = rotated_at and now - rotated_at
  if since and since >= 0 and since < sync_ms and tonumber(state[5] or 0) < sync_hits then
    return { 'EARLY', sync_ms - since }
  end
  status, ids, oldest = 'OK', waiting, state[6] or now
  incarnation, seq, rotated_at = incarnation or ARGV[1], text(seq + 1), now
end

-- deletes nothing: after a write a script may go on where memory is full, and draining must work there
redis.call('HDEL', meta, '')
if status == 'OK' then
  local hits = (tonumber(state[9]) or 0) + (tonumber(state[5]) or 0)
  -- the id before the batch: half a transaction, as a torn append-only file can leave it, must not name a batch wrongly
  redis.call('HSET', meta, 'incarnation', incarnation, 'seq', seq, 'rotated_at', text(now), 'batch_first_at',
    text(oldest), 'hits', '0', 'hits_before', text(hits))
  redis.call('RENAME', buffer, batch)
end
if owner ~= '' then redis.call('HSET', meta, 'lease_owner', owner, 'lease_until', text(now + lease_ms)) end
return { status, incarnation, seq, ids, age(rotated_at), age(oldest) }
