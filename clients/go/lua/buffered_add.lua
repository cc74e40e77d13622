-- buffered_add, revision 1
-- Counts hits: adds each delta to what its id has pending.
--
-- KEYS
--   1 calls         hash      of the caller's home partition: caller -> "N [INDEX:WORD ...]", its
--                             last call in this epoch and what was refused in it; =now, =before,
--                             =max_pending
--   2 calls_before  hash      the same of the epoch before
--   3 buffer        hash      id -> pending delta
--   4 meta          hash      hits, refused, first_at, incarnation; then both keys of the node's
--                             next partition
-- ARGV
--   1 caller        string    random, no "=" in front; one call in flight; "" gives up the fence
--   2 n             integer   number of the call, higher than the caller's last, 1 to 2^53
--   3 epoch         string    as family_epoch returned it
--   4 now_ms        integer   "" for the server's clock; anything else is for tests
--   5 hits, pairs, (id, delta)...  groups  for each partition how many hits its pairs stand
--                             for, 1 to 2^53; how many pairs; and these; id: 1 to 255 bytes, UTF-8;
--                             delta: an i64; 1000 pairs in all at most
-- REPLIES
--   {"OK", (total, pending...)...}  counted; for each partition its hits since the last rotation,
--                                   then for each pair what its id has pending now, an integer, or
--                                   a string where it is beyond 2^53; or a word, and that pair was
--                                   not counted: RANGE (delta or sum is beyond i64), FULL (the
--                                   buffer holds max_pending other ids), BADID (empty, or too
--                                   long), WRONGTYPE (buffer or meta is no hash, or hits are not an
--                                   integer)
--   {"DUP", refused}          this call was executed before, nothing done now; "3:FULL 7:RANGE" are
--                             the pairs that were refused then, counted from 1 through all
--                             partitions
--   {"PASSED"}  the caller made a later call: nothing done now, the outcome is unknown
--   {"EXPIRED"}  unknown epoch: nothing done now, the outcome of earlier arrivals is unknown
-- ERRORS
--   BADARG                    the arguments do not fit the keys, or the family is of another kind;
--                             nothing done
-- REPEAT  safe with a caller, from any process
-- SINCE   0.1.0

-- a local is found faster than a global
local call, pcall, type, KEYS, ARGV = redis.call, redis.pcall, type, KEYS, ARGV
local own_kind, caller, n, epoch = 'buffered', ARGV[1], ARGV[2], ARGV[3]
local own_settings = { '=max_pending' }
local fits, arg = #KEYS >= 4 and #KEYS % 2 == 0 and #ARGV <= 2002 + #KEYS, 5
for _ = 3, fits and #KEYS or 0, 2 do
  local hits, count = tonumber(ARGV[arg]) or 0, tonumber(ARGV[arg + 1]) or -1
  -- the hits decide when the buffer may be full
  fits = fits and hits >= 1 and hits % 1 == 0 and hits <= 2^53 and count >= 0 and count % 1 == 0
  arg = arg + 2 + 2 * count
end
if not fits or arg ~= #ARGV + 1 then
  return redis.error_reply('BADARG expected for every two keys from the 3rd on: hits of 1 to 2^53, '
    .. 'pairs, and so many pairs, 1000 in all at most')
end

-- the fence, word for word the same in each counting script: a repeated call does not count again
local is_number = n:find('^[1-9]%d*$') and (#n < 16 or #n == 16 and n <= '9007199254740992')
if caller ~= '' and (caller:byte() == 61 or not is_number) then
  return redis.error_reply('BADARG expected n of 1 to 2^53, and a caller without = in front')
end
local state = call('HMGET', KEYS[1], '=now', '=kind', caller, unpack(own_settings))
local now, kind, last = state[1], state[2], state[3]
if kind and kind ~= own_kind then
  return redis.error_reply('BADARG the family is ' .. kind .. ', not ' .. own_kind)
end
if epoch ~= now then
  local before = call('HGET', KEYS[1], '=before')
  if caller ~= '' and epoch ~= before then return { 'EXPIRED' } end -- guard: AnyEpoch
  last = last or call('HGET', KEYS[2], caller) -- guard: OneMemory
end
local last_n
if last then last_n = tonumber(last) or tonumber(last:match('^%d+')) end -- guard: NoMemory
local ahead = last_n and n - last_n or 1
if ahead < 0 then return { 'PASSED' } end
if ahead == 0 then return { 'DUP', last:match(' (.+)') or '' } end

-- a value that is not a number ends the script here, before the first write
local max = (state[4] or 1000000) + 0
arg = 5
-- what can be refused as a whole is refused here; below a pair can only fail by itself
if caller == '' then call('HINCRBY', KEYS[4], 'hits', 0) else call('HSET', KEYS[1], caller, n) end
-- with room for a call of one pair, since a table that grows is slow
local reply, at, refused = { 'OK', nil, nil }, 1, nil
for k = 3, #KEYS, 2 do
  local buffer, meta, hits, done = KEYS[k], KEYS[k + 1], ARGV[arg], arg + 1 + 2 * ARGV[arg + 1]
  local refused_pairs = 0
  local total = pcall('HINCRBY', meta, 'hits', hits)
  local is_broken, is_near_full, grows = type(total) == 'table', false, false
  if is_broken then
    total = 0
  else
    local before = total - hits
    if before == 0 then
      local time = ARGV[4] ~= '' and { '0', ARGV[4] .. '000' } or call('TIME')
      local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
      call('HSET', meta, 'first_at', string.format('%.0f', now_ms))
      -- of a partition that was never configured
      local incarnation = redis.sha1hex(meta .. caller .. n .. time[1] .. time[2]):sub(1, 16)
      call('HSETNX', meta, 'incarnation', incarnation) -- guard: Incarnation
    end
    grows = before < 64 and total >= 64
    if grows then pcall('HSET', buffer, '', (' '):rep(256)) end -- lua/README.md, "Small hashes"
    -- as many ids as hits at most, so most calls need not ask
    is_near_full = total > max
    is_broken = is_near_full and type(pcall('HLEN', buffer)) == 'table'
  end
  local limit = grows and max + 1 or max
  at = at + 1
  reply[at] = total
  for i = arg + 2, done, 2 do
    local id, sum, word = ARGV[i], nil, nil
    if is_broken then
      word = 'WRONGTYPE'
    elseif id == '' or #id > 255 then
      word = 'BADID'
    elseif is_near_full and call('HLEN', buffer) >= limit and call('HEXISTS', buffer, id) == 0 then
      word = 'FULL'
    else
      sum = pcall('HINCRBY', buffer, id, ARGV[i + 1])
      if type(sum) == 'table' then
        word = sum.err:find('WRONGTYPE') and 'WRONGTYPE' or 'RANGE'
      elseif sum >= 2^53 or sum <= -2^53 then
        sum = call('HGET', buffer, id)
      end
    end
    at = at + 1
    reply[at] = word or sum
    if word then
      refused_pairs = refused_pairs + 1
      refused = refused or {}
      refused[#refused + 1] = at - (k + 1) / 2 .. ':' .. word
    end
  end
  if grows then pcall('HDEL', buffer, '') end
  -- each pair stands for the average number of hits
  local share = refused_pairs > 0 and math.floor(hits * refused_pairs / ARGV[arg + 1]) or 0
  if share > 0 and total > 0 then
    pcall('HINCRBY', meta, 'hits', string.format('-%.0f', share))
    pcall('HINCRBY', meta, 'refused', string.format('%.0f', share))
  end
  arg = done + 1
end
if refused and caller ~= '' then
  call('HSET', KEYS[1], caller, n .. ' ' .. table.concat(refused, ' '))
end
return reply
