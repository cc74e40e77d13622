-- buffered_rotate, revision 1
-- Cuts the buffer off as the partition's batch, or returns the one in flight, and takes its lease.
--
-- KEYS
--   1 buffer        hash      id -> pending delta
--   2 batch         hash      id -> delta
--   3 meta          hash      incarnation, seq, nonce, rotated_at, batch_first_at, batch_hits,
--                             lease_owner, lease_until, hits, first_at, hold_until, hold_ms,
--                             database, hits_before: the hits of all batches that were cut
-- ARGV
--   1 salt          string    random; the nonce is made of it and the time, so that no two cuts
--                             share one
--   2 owner         string    random name of the caller for the lease; "" takes none and ignores
--                             others'
--   3 lease_ms      integer   how long the lease lasts; a lease of another owner that would last
--                             longer than this and than a minute dates from before the clock
--                             stepped back, and is ignored
--   4 sync_hits     integer   cut only if there were so many hits; 0 cuts whatever is there
--   5 sync_ms       integer   ... or the last rotation is this long ago
--   6 hold_ms       integer   unless a batch is in flight, later cuts that ask for hits wait for so
--                             long, at most an hour; a hold that would last longer than that dates
--                             from before the clock stepped back, and is ignored; 0 changes nothing
--   7 database      string    id of the database that takes the batch; "" for any
--   8 now_ms        integer   "" for the server's clock; anything else is for tests
-- REPLIES
--   {"OK", incarnation, seq, nonce, ids, settled_ms, oldest_ms}    cut now: the batch's id, its
--                             number of ids, how long ago it was cut, and how long ago its oldest
--                             hit was counted
--   {"HELD", incarnation, seq, nonce, ids, settled_ms, oldest_ms}  the batch that was in flight
--                            already
--   {"LEASED", ms}            a batch is in flight, and another owner has the lease for so long
--   {"EARLY", ms}             no sync is due for so long, or cuts are held
--   {"EMPTY"}                 nothing is pending
--   {"MISMATCH", database}    the partition belongs to another database; nothing done
-- ERRORS
--   BADARG                    an argument is missing or wrong; nothing done
--   BADSTATE                  there is a batch but its id is missing from meta: fields were
--                             deleted, and an operator must set the batch aside; nothing done
-- REPEAT  safe: the second call returns HELD
-- SINCE   0.1.0
-- CALLER  Partition::rotate in src/scripts/partition/buffered.rs
-- VECTORS lua/vectors/buffered_rotate.json

local buffer, batch, meta = KEYS[1], KEYS[2], KEYS[3]
local salt, owner, lease_ms = ARGV[1], ARGV[2], tonumber(ARGV[3])
local sync_hits, sync_ms, hold_ms = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local database, test_ms = ARGV[7], ARGV[8]
local are_numbers = lease_ms and sync_hits and sync_ms and hold_ms
if #KEYS ~= 3 or #ARGV ~= 8 or salt == '' or not are_numbers then
  return redis.error_reply('BADARG expected buffer, batch, meta, salt, owner, lease_ms, sync_hits, '
    .. 'sync_ms, hold_ms, database, now_ms')
end

-- read the partition's state
local time = test_ms == '' and redis.call('TIME') or { '0', test_ms .. '000' }
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local waiting, cut = redis.call('HLEN', buffer), redis.call('HLEN', batch)
local incarnation, last_seq, nonce, rotated_at, batch_first_at, hits_text, first_at, lease_owner,
  lease_until, hits_before_text, hold_until, own_database, last_hold_ms = unpack(
  redis.call('HMGET', meta, 'incarnation', 'seq', 'nonce', 'rotated_at', 'batch_first_at', 'hits',
    'first_at', 'lease_owner', 'lease_until', 'hits_before', 'hold_until', 'database', 'hold_ms'))
local hits, seq = tonumber(hits_text) or 0, last_seq or '0'
local is_foreign = own_database and database ~= '' and own_database ~= database
if is_foreign then return { 'MISMATCH', own_database } end -- guard: Database

-- Redis writes some numbers as 1.7e+12
local function text(number) return string.format('%.0f', number) end
-- never negative, also where the clock stepped back
local function age(since) return math.max(0, now - (since or now)) end
local function random(what)
  return redis.sha1hex(table.concat({ what, salt, time[1], time[2] }, ' ')):sub(1, 16)
end

local status, ids, oldest
if cut > 0 then
  -- a batch is in flight: return it, unless another owner has the lease
  if not (incarnation and last_seq and nonce and rotated_at) then
    return redis.error_reply('BADSTATE ' .. batch .. ' has no id: ' .. meta .. ' lacks fields. '
      .. 'See BADSTATE in docs/operations.md')
  end
  local left = (lease_until or 0) - now
  local is_leased = left > 0 and left <= math.max(lease_ms, 60000)
  if owner ~= '' and lease_owner and lease_owner ~= owner and is_leased then
    return { 'LEASED', left }
  end
  status, ids, oldest = 'HELD', cut, batch_first_at
else
  -- decide whether the buffer is cut now
  if hold_ms > 0 then
    hold_ms = math.min(hold_ms, 3600000)
    redis.call('HSET', meta, 'hold_until', text(now + hold_ms), 'hold_ms', text(hold_ms))
  end
  if waiting == 0 then return { 'EMPTY' } end
  local held = (tonumber(hold_until) or 0) - now
  -- a hold that would last longer than it was asked for dates from before the clock stepped back
  local is_held = held > 0 and held <= (tonumber(last_hold_ms) or 0)
  if sync_hits > 0 and is_held then return { 'EARLY', held } end
  local since = rotated_at and now - rotated_at
  if since and since >= 0 and since < sync_ms and tonumber(hits_text or 0) < sync_hits then
    return { 'EARLY', sync_ms - since }
  end
  status, ids, oldest = 'OK', waiting, first_at or now
  incarnation, seq, nonce = incarnation or random(meta), text(seq + 1), random(batch)
  rotated_at = now
end

-- Batches must reach the database also where memory is full. There Redis refuses HSET as the first
-- write of a script, but not HDEL, and after the first write it refuses none. So this HDEL comes
-- first, and deletes nothing.
redis.call('HDEL', meta, '')
if status == 'OK' then
  local hits_before = (tonumber(hits_before_text) or 0) + hits
  -- The id is written before the batch. A torn append-only file may keep only a part of these
  -- writes, and then no batch has the id of another.
  redis.call('HSET', meta, 'incarnation', incarnation, 'seq', seq, 'nonce', nonce, 'rotated_at',
    text(now), 'batch_first_at', text(oldest), 'batch_hits', text(hits), 'hits', '0',
    'hits_before', text(hits_before))
  redis.call('RENAME', buffer, batch)
end
if owner ~= '' then
  redis.call('HSET', meta, 'lease_owner', owner, 'lease_until', text(now + lease_ms))
end
return { status, incarnation, seq, nonce, ids, age(rotated_at), age(oldest) }
