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
-- CALLER  Partition::add_to in src/scripts/partition/buffered.rs
-- VECTORS lua/vectors/buffered_add.json

-- a local is found faster than a global
local call, pcall, type, KEYS, ARGV = redis.call, redis.pcall, type, KEYS, ARGV
local own_kind, caller, n, epoch = 'buffered', ARGV[1], ARGV[2], ARGV[3]
local test_ms, requests = ARGV[4], tonumber(ARGV[5]) or -1
local calls = KEYS[1]

-- check the arguments of each partition: a group of them is its hits, its pair_count, and the pairs
local last_key, first_group, arg = requests == 0 and #KEYS or #KEYS - 2, 6, 6
local fits = last_key >= 4 and #KEYS % 2 == 0 and requests % 1 == 0 and requests >= 0
for _ = 3, fits and last_key or 0, 2 do
  local hits, pair_count = tonumber(ARGV[arg]) or 0, tonumber(ARGV[arg + 1]) or -1
  -- the number of hits decides when the buffer may be full
  fits = fits and hits >= 1 and hits % 1 == 0 and hits <= 2^53
    and pair_count >= 0 and pair_count % 1 == 0
  local first_pair = arg + 2
  arg = first_pair + 2 * pair_count
end
local first_request = arg
local fits_requests = first_request + 3 * requests == #ARGV + 1
if not fits or not fits_requests or first_request > 2004 + last_key then
  return redis.error_reply('BADARG expected for every two keys from the 3rd on: hits of 1 to 2^53, '
    .. 'pairs, and so many pairs, 1000 in all at most; pair, request, generation of each request')
end

local state = call('HMGET', calls, '=now', '=kind', caller, '=max_pending')
-- the fence, word for word the same in each counting script: a repeated call does not count again
local is_number = n:find('^[1-9]%d*$') and (#n < 16 or #n == 16 and n <= '9007199254740992')
if caller ~= '' and (caller:byte() == 61 or not is_number) then
  return redis.error_reply('BADARG expected n of 1 to 2^53, and a caller without = in front')
end
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

-- a setting that is not a number ends the script here, before the first write
local max_pending = (state[4] or 1000000) + 0
-- the ids of all pairs, by which requests are stored
local ids_of_call = requests > 0 and {}
arg = first_group
while requests > 0 and arg < first_request do
  local pair_count, first_pair = ARGV[arg + 1], arg + 2
  arg = first_pair + 2 * pair_count
  for i = first_pair, arg - 1, 2 do ids_of_call[#ids_of_call + 1] = ARGV[i] end
end
-- the requests, word for word the same in both scripts that take them: one that was counted before
-- is not counted again (docs/protocol.md, 3.10)
local memory, memory_before, ending, fields, pairs_asked, generations, field_of, word_of
local new_fields, words_now, decided, undecided
-- a call without requests pays for none of these tables
if requests > 0 then
  memory, memory_before = KEYS[#KEYS - 1], KEYS[#KEYS]
  fields, pairs_asked, generations, field_of, word_of = {}, {}, {}, {}, {}
  new_fields, words_now, decided, undecided = {}, {}, {}, {}
end
for at = first_request, #ARGV, 3 do
  local pair, request, generation = tonumber(ARGV[at]), ARGV[at + 1], ARGV[at + 2]
  if not ids_of_call[pair] or field_of[pair] or request == '' or #request > 64 then
    return redis.error_reply('BADARG expected for each request the number of a pair of its own, '
      .. 'a name of 1 to 64 bytes, and a generation')
  end
  local field, number = #request .. ':' .. request .. ':' .. ids_of_call[pair], #fields + 1
  fields[number], pairs_asked[number], generations[number] = field, pair, generation
  field_of[pair] = field
end
if requests > 0 then
  local found = call('HMGET', memory, '=now', '=before', '=tag', unpack(fields))
  local older = call('HMGET', memory_before, '=tag', unpack(fields))
  local current, previous, own_tag = found[1], found[2], found[3]
  ending = own_tag and ' ' .. own_tag or ''
  for i, field in ipairs(fields) do
    local pair, generation = pairs_asked[i], generations[i]
    local stored, tag = found[i + 3], own_tag
    if not stored then stored, tag = older[i + 1], older[1] end -- guard: OneGeneration
    if stored then
      -- A word without its memory's tag was stored before a reset, and an empty word by a script
      -- that a crash cut off. Whether such a pair was counted is unknown.
      local tag_ending = tag and ' ' .. tag or ''
      local word = stored:sub(1, #stored - #tag_ending)
      local is_known = word ~= '' and word .. tag_ending == stored
      word_of[pair] = is_known and 'BEFORE:' .. word or 'EXPIRED'
    end
    local is_current = generation == current or generation == previous
    if not is_current then word_of[pair] = 'EXPIRED' end -- guard: AnyGeneration
    if not word_of[pair] then
      new_fields[#new_fields + 1] = field
      new_fields[#new_fields + 1] = ''
    end
  end
end

-- The first write notes the call. If Redis refuses it, as it does where memory is full or the
-- server is a replica, the script ends here, and nothing was done. Redis accepts all later writes
-- of the script, so from here on only a single pair or partition can fail. A call without a caller
-- has nothing to note, and adds 0 to a number instead.
local first_meta = KEYS[4]
if caller == '' then call('HINCRBY', first_meta, 'hits', 0) else call('HSET', calls, caller, n) end
if requests > 0 and new_fields[1] then call('HSET', memory, unpack(new_fields)) end

-- count the pairs of each partition; the reply has room for a call of one pair, since a table that
-- grows is slow
local reply, length, pair, refusals = { 'OK', nil, nil }, 1, 0, nil
arg = first_group
for key = 3, last_key, 2 do
  local buffer, meta = KEYS[key], KEYS[key + 1]
  local hits, pair_count, first_pair = ARGV[arg], ARGV[arg + 1], arg + 2
  arg = first_pair + 2 * pair_count
  -- how many pairs are not counted, and how many of them because of their request
  local uncounted, repeated = 0, 0
  local total = pcall('HINCRBY', meta, 'hits', hits)
  local is_broken, may_be_full, becomes_table = type(total) == 'table', false, false
  if is_broken then
    total = 0
  else
    local before = total - hits
    if before == 0 then
      local time = test_ms ~= '' and { '0', test_ms .. '000' } or call('TIME')
      local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
      call('HSET', meta, 'first_at', string.format('%.0f', now_ms))
      -- a partition that was never configured has no incarnation
      local incarnation = redis.sha1hex(meta .. caller .. n .. time[1] .. time[2]):sub(1, 16)
      call('HSETNX', meta, 'incarnation', incarnation) -- guard: Incarnation
    end
    becomes_table = before < 64 and total >= 64
    -- lua/README.md, "Small hashes"
    if becomes_table then pcall('HSET', buffer, '', (' '):rep(256)) end
    -- Each id in the buffer stands for a hit at least. So while the partition has at most
    -- max_pending hits, the buffer cannot be full, and its length need not be read.
    may_be_full = total > max_pending
    is_broken = may_be_full and type(pcall('HLEN', buffer)) == 'table'
  end
  -- the field of no id does not count
  local limit = becomes_table and max_pending + 1 or max_pending
  length = length + 1
  reply[length] = total
  for i = first_pair, arg - 1, 2 do
    local id, delta, sum = ARGV[i], ARGV[i + 1], nil
    length, pair = length + 1, pair + 1
    local field = requests > 0 and field_of[pair]
    local word = field and (word_of[pair] or words_now[field] and 'BEFORE:' .. words_now[field])
    if word then
      repeated, field = repeated + 1, nil
    elseif is_broken then
      word = 'WRONGTYPE'
    elseif id == '' or #id > 255 then
      word = 'BADID'
    elseif may_be_full and call('HLEN', buffer) >= limit and call('HEXISTS', buffer, id) == 0 then
      word = 'FULL'
    else
      sum = pcall('HINCRBY', buffer, id, delta)
      if type(sum) == 'table' then
        word = sum.err:find('WRONGTYPE') and 'WRONGTYPE' or 'RANGE'
      elseif sum >= 2^53 or sum <= -2^53 then
        -- Lua has rounded it
        sum = call('HGET', buffer, id)
      end
    end
    reply[length] = word or sum
    if word then
      uncounted = uncounted + 1
      refusals = refusals or {}
      refusals[#refusals + 1] = pair .. ':' .. word
    end
    if field and (not word or word == 'RANGE') then
      local text = word or sum
      if type(text) == 'number' then text = ('%.0f'):format(text) end
      words_now[field] = text
      decided[#decided + 1], decided[#decided + 2] = field, text .. ending
    elseif field then
      -- any other word decides nothing: the request may succeed later
      undecided[#undecided + 1] = field
    end
  end
  if becomes_table then pcall('HDEL', buffer, '') end
  -- The hits of all pairs were added above. Now those of uncounted pairs are taken back: a pair
  -- stands for the average number of hits.
  local surplus = uncounted > 0 and math.floor(hits * uncounted / pair_count) or 0
  if surplus > 0 and total > 0 then
    pcall('HINCRBY', meta, 'hits', string.format('-%.0f', surplus))
    local refused = math.floor(hits * (uncounted - repeated) / pair_count)
    if refused > 0 then pcall('HINCRBY', meta, 'refused', string.format('%.0f', refused)) end
  end
end

-- note the words of requests and pairs
if requests > 0 and undecided[1] then call('HDEL', memory, unpack(undecided)) end
if requests > 0 and decided[1] then call('HSET', memory, unpack(decided)) end
if refusals and caller ~= '' then
  call('HSET', calls, caller, n .. ' ' .. table.concat(refusals, ' '))
end
return reply
