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
--   5 [requests]    hash      with requests only, the last keys but one: of the home, "LENGTH:
--                             REQUEST:ID" -> what a pair with this request got; =now, =before, =tag
--   6 [requests_before]  hash  the same of the generation before
-- ARGV
--   1 caller        string    random, no "=" in front; one call in flight; "" gives up the fence
--   2 n             integer   number of the call, higher than the caller's last, 1 to 2^53
--   3 epoch         string    as family_epoch returned it
--   4 now_ms        integer   "" for the server's clock; anything else is for tests
--   5 requests      integer   how many of the pairs have a request, 0 as a rule
--   6 hits, pairs, (id, delta)...  groups  for each partition how many hits its pairs stand
--                             for, 1 to 2^53; how many pairs; and these; id: 1 to 255 bytes, UTF-8;
--                             delta: an i64; 1000 pairs in all at most
--   7 [pair, request, generation...]  list  for each pair with a request its number, from 1
--                             through all partitions; the request's name, 1 to 64 bytes; and the
--                             generation that family_epoch returned before its first send
-- REPLIES
--   {"OK", (total, pending...)...}  counted; for each partition its hits since the last rotation,
--                                   then for each pair what its id has pending now, an integer, or
--                                   a string where it is beyond 2^53; or a word, and that pair was
--                                   not counted: RANGE (delta or sum is beyond i64), FULL (the
--                                   buffer holds max_pending other ids), BADID (empty, or too
--                                   long), WRONGTYPE (buffer or meta is no hash, or hits are not an
--                                   integer); with a request also BEFORE:sum or BEFORE:RANGE (what
--                                   it got before), or EXPIRED (Redis may have forgotten it: the
--                                   outcome of an earlier arrival is unknown)
--   {"DUP", words}            this call was executed before, nothing done now; "3:FULL 7:RANGE" are
--                             the pairs that got a word then, counted from 1 through all partitions
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
local requests = tonumber(ARGV[5]) or -1
local last_key = requests == 0 and #KEYS or #KEYS - 2
local fits, tail = last_key >= 4 and #KEYS % 2 == 0 and requests % 1 == 0 and requests >= 0, 6
for _ = 3, fits and last_key or 0, 2 do
  local hits, count = tonumber(ARGV[tail]) or 0, tonumber(ARGV[tail + 1]) or -1
  -- the hits decide when the buffer may be full
  fits = fits and hits >= 1 and hits % 1 == 0 and hits <= 2^53 and count >= 0 and count % 1 == 0
  tail = tail + 2 + 2 * count
end
if not fits or tail + 3 * requests ~= #ARGV + 1 or tail > 2004 + last_key then
  return redis.error_reply('BADARG expected for every two keys from the 3rd on: hits of 1 to 2^53, '
    .. 'pairs, and so many pairs, 1000 in all at most; pair, request, generation of each request')
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
local max, ids, arg = (state[4] or 1000000) + 0, requests > 0 and {}, 6
for _ = 3, requests > 0 and last_key or 0, 2 do
  for i = arg + 2, arg + 2 * ARGV[arg + 1], 2 do ids[#ids + 1] = ARGV[i] end
  arg = arg + 2 + 2 * ARGV[arg + 1]
end
-- the requests, word for word the same in both scripts that take them: one that was counted before
-- is not counted again (docs/protocol.md, 3.10)
local field_of, word_of, fields, pair_of, fresh, mark, got, decided, undecided
-- a call without requests pays for none of these tables
if requests > 0 then
  field_of, word_of, fields, pair_of, fresh = {}, {}, {}, {}, {}
  got, decided, undecided = {}, {}, {}
end
for i = 1, requests do
  local pair, request = tonumber(ARGV[tail + 3 * i - 3]), ARGV[tail + 3 * i - 2]
  if not ids[pair] or field_of[pair] or request == '' or #request > 64 then
    return redis.error_reply('BADARG expected for each request the number of a pair of its own, '
      .. 'a name of 1 to 64 bytes, and a generation')
  end
  local field = #request .. ':' .. request .. ':' .. ids[pair]
  fields[i], pair_of[i], field_of[pair] = field, pair, field
end
if requests > 0 then
  local found = call('HMGET', KEYS[#KEYS - 1], '=now', '=before', '=tag', unpack(fields))
  local older = call('HMGET', KEYS[#KEYS], '=tag', unpack(fields))
  mark = found[3] and ' ' .. found[3] or ''
  for i, field in ipairs(fields) do
    local pair, generation = pair_of[i], ARGV[tail + 3 * i - 1]
    local stored, tag = found[i + 3], found[3]
    if not stored then stored, tag = older[i + 1], older[1] end -- guard: OneGeneration
    if stored then
      -- without the memory's tag it is from before a reset; empty, of a script that was cut off
      local ending = tag and ' ' .. tag or ''
      local word = stored:sub(1, #stored - #ending)
      local is_known = word ~= '' and word .. ending == stored
      word_of[pair] = is_known and 'BEFORE:' .. word or 'EXPIRED'
    end
    local is_current = generation == found[1] or generation == found[2]
    if not is_current then word_of[pair] = 'EXPIRED' end -- guard: AnyGeneration
    if not word_of[pair] then
      fresh[#fresh + 1] = field
      fresh[#fresh + 1] = ''
    end
  end
end

arg = 6
-- what can be refused as a whole is refused here; below a pair can only fail by itself
if caller == '' then call('HINCRBY', KEYS[4], 'hits', 0) else call('HSET', KEYS[1], caller, n) end
if fresh and fresh[1] then call('HSET', KEYS[#KEYS - 1], unpack(fresh)) end
-- with room for a call of one pair, since a table that grows is slow
local reply, at, noted = { 'OK', nil, nil }, 1, nil
for k = 3, last_key, 2 do
  local buffer, meta, hits, done = KEYS[k], KEYS[k + 1], ARGV[arg], arg + 1 + 2 * ARGV[arg + 1]
  local refused, known = 0, 0
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
    at = at + 1
    local pair = at - (k + 1) / 2
    local id, sum, field = ARGV[i], nil, requests > 0 and field_of[pair]
    local word = field and (word_of[pair] or got[field] and 'BEFORE:' .. got[field])
    if word then
      known, field = known + 1, nil
    elseif is_broken then
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
    reply[at] = word or sum
    if word then
      refused = refused + 1
      noted = noted or {}
      noted[#noted + 1] = pair .. ':' .. word
    end
    if field and (not word or word == 'RANGE') then
      local text = word or sum
      if type(text) == 'number' then text = ('%.0f'):format(text) end
      got[field] = text
      decided[#decided + 1], decided[#decided + 2] = field, text .. mark
    elseif field then
      undecided[#undecided + 1] = field -- it may succeed later
    end
  end
  if grows then pcall('HDEL', buffer, '') end
  -- each pair stands for the average number of hits
  local share = refused > 0 and math.floor(hits * refused / ARGV[arg + 1]) or 0
  if share > 0 and total > 0 then
    pcall('HINCRBY', meta, 'hits', string.format('-%.0f', share))
    share = math.floor(hits * (refused - known) / ARGV[arg + 1])
    if share > 0 then pcall('HINCRBY', meta, 'refused', string.format('%.0f', share)) end
  end
  arg = done + 1
end
if requests > 0 and undecided[1] then call('HDEL', KEYS[#KEYS - 1], unpack(undecided)) end
if requests > 0 and decided[1] then call('HSET', KEYS[#KEYS - 1], unpack(decided)) end
if noted and caller ~= '' then
  call('HSET', KEYS[1], caller, n .. ' ' .. table.concat(noted, ' '))
end
return reply
