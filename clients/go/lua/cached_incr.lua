-- cached_incr, revision 1
-- Changes counters that have a base, and returns each one's new value: base + batch + buffer.
--
-- KEYS
--   1 calls         hash      of the caller's home partition: caller -> "N WORD ...", its last
--                             call; =now, =before; the bounds =min and =max, below 2^53 in size
--   2 calls_before  hash      the same of the epoch before
--   3 base          hash      id -> "AT_MS ROW", as cached_seed stores it, or "AT_MS ticket
--                             HEX16" before that
--   4 buffer        hash      id -> pending delta
--   5 batch         hash      id -> delta
--   6 meta          hash      hits, first_at, incarnation, batch_hits; then these four of the
--                             node's next partition
--   7 [requests]    hash      with requests only, the last keys but one: of the home, "LENGTH:
--                             REQUEST:ID" -> what a pair with this request got; =now, =before, =tag
--   8 [requests_before]  hash  the same of the generation before
-- ARGV
--   1 caller        string    random, no "=" in front; one call in flight; "" gives up the fence
--   2 n             integer   number of the call, higher than the caller's last, 1 to 2^53
--   3 epoch         string    as family_epoch returned it
--   4 now_ms        integer   "" for the server's clock; anything else is for tests
--   5 requests      integer   how many of the pairs have a request, 0 as a rule
--   6 pairs, (id, change)...  list  for each partition how many pairs, and the pairs, 1000 in all
--                                   at most; id: 1 to 255 bytes; change: an integer to add, or "="
--                                   and an integer to set, below 2^53 in size
--   7 [pair, request, generation...]  list  for each pair with a request its number, from 1
--                             through all partitions; the request's name, 1 to 64 bytes; and the
--                             generation that family_epoch returned before its first send
-- REPLIES
--   {"OK", word...}           for each pair the new value, an integer; or why it was not changed:
--                             MISS:ticket, it has no base, or one that is too old for a refusal:
--                             seed it, call again; RANGE:value, out of bounds; BEYOND, the value is
--                             not below 2^53 in size; BADID, too long or empty; BADSTATE, what is
--                             stored is not an integer; with a request also BEFORE:value or
--                             BEFORE:RANGE:value (what it got before), or EXPIRED (Redis may have
--                             forgotten it: the outcome of an earlier arrival is unknown)
--   {"DUP", words}            executed before, nothing done now; the same words, separated by
--                             spaces
--   {"PASSED"}  the caller made a later call: nothing done now, the outcome is unknown
--   {"EXPIRED"}  unknown epoch: nothing done now, the outcome of earlier arrivals is unknown
-- ERRORS
--   BADARG                    the arguments do not fit the keys, or the family is of another kind;
--                             nothing done
-- REPEAT  safe with a caller, from any process
-- SINCE   0.1.0
-- CALLER  Partition::incr_in in src/scripts/partition/cached.rs
-- VECTORS lua/vectors/cached_incr.json

local call, pcall, type, tonumber = redis.call, redis.pcall, type, tonumber
local sub, ARGV, nan, limit = string.sub, ARGV, 0 / 0, 2^53
local calls, first_base = KEYS[1], KEYS[3]
local own_kind, caller, n, epoch = 'cached', ARGV[1], ARGV[2], ARGV[3]
local test_ms, requests = ARGV[4], tonumber(ARGV[5]) or -1

-- check the arguments of each partition, and name them and its keys: its pairs are a group
local last_key, groups, has_group, arg = requests == 0 and #KEYS or #KEYS - 2, {}, {}, 6
local fits = last_key >= 6 and last_key % 4 == 2 and requests % 1 == 0 and requests >= 0
for key = 3, fits and last_key or 0, 4 do
  local base, pair_count = KEYS[key], tonumber(ARGV[arg]) or 0
  -- all is read before anything is written, so a partition must occur once
  fits = fits and not has_group[base] and pair_count > 0 and pair_count % 1 == 0
  has_group[base] = true
  groups[#groups + 1] = {
    base = base,
    buffer = KEYS[key + 1],
    batch = KEYS[key + 2],
    meta = KEYS[key + 3],
    pair_count = pair_count,
    first_pair = arg + 1,
  }
  arg = arg + 1 + 2 * pair_count
end
local first_request = arg
local fits_requests = first_request + 3 * requests == #ARGV + 1
if not fits or not fits_requests or first_request > 2006 + #groups then
  return redis.error_reply('BADARG expected for every four keys from the 3rd on: pairs, '
    .. 'and so many pairs, 1000 in all at most; pair, request, generation of each request')
end
local state = call('HMGET', calls, '=now', '=kind', caller, '=min', '=max')
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

-- numbers below 2^53 in size, and those sums of them that stay below it, are exact in Lua
local low, high = tonumber(state[4] or 1 - limit), tonumber(state[5] or limit - 1)
local function is_small(number) return number > -limit and number < limit end

-- The value of a counter is its row, and what batch and buffer have of it. Row and batch together
-- are `settled`. Reads what the buffer has, and adds the change to it; "=VALUE" sets the value.
-- Returns the new value; or nil, what the buffer has, and whether Redis refused the command.
local function add(buffer, id, settled, change)
  local found, amount, delta = call('HGET', buffer, id), tonumber(change), change
  local waiting, is_set = found and (tonumber(found) or nan) or 0, not amount
  if is_set then
    local gap = (change:byte() == 61 and tonumber(sub(change, 2)) or nan) - settled
    amount = is_small(gap) and gap - waiting + 0 or nan
    delta = ('%.0f'):format(amount)
  end
  local pending = waiting + amount
  local after = settled + pending
  -- a value that is out of bounds already may come back in several steps
  local is_out = (is_set or amount < 0) and after < low or (is_set or amount > 0) and after > high
  local is_exact = after % 1 == 0 and is_small(settled) and is_small(amount)
    and is_small(pending) and is_small(after)
  local added = is_exact and not is_out and pcall('HINCRBY', buffer, id, delta)
  if type(added) == 'number' then return after end
  -- a table is an error of Redis: a command that the user must not execute
  return nil, found, type(added) == 'table'
end

local now_ms, ticket_name
-- returns the time, and makes a name that is never given twice
local function read_clock()
  local time = test_ms ~= '' and { '0', test_ms .. '000' } or call('TIME')
  local seed = table.concat({ first_base, caller, n, time[1], time[2] }, ' ')
  now_ms, ticket_name = time[1] * 1000 + math.floor(time[2] / 1000), redis.sha1hex(seed):sub(1, 16)
  return now_ms
end

-- a base is 13 digits of the time when it was stored, a space, and the row or a ticket
local time_digits, row_begins = 13, 15

-- returns why a change is refused, or nil if the row has to be read first (docs/protocol.md, 4.1)
local function refusal(base, settled, batched, waiting)
  local value = settled + (waiting and (tonumber(waiting) or nan) or 0)
  if value % 1 ~= 0 then return 'BADSTATE' end
  if not is_small(settled) or not is_small(value) then return 'BEYOND' end
  local stored_ms = tonumber(sub(base, 1, time_digits)) or 0
  local age_ms = not (batched or waiting) and (now_ms or read_clock()) - stored_ms
  if age_ms and (age_ms < 0 or age_ms > 1000) then return nil end -- guard: OldRow
  return ('RANGE:%.0f'):format(value)
end

-- everything is read before anything is written: a key of another type ends the script here
local ids_of_call = requests > 0 and {}
for _, group in ipairs(groups) do
  local ids, arg_of_id = {}, group.first_pair
  for i = 1, group.pair_count do
    ids[i] = ARGV[arg_of_id]
    arg_of_id = arg_of_id + 2
    if requests > 0 then ids_of_call[#ids_of_call + 1] = ids[i] end
  end
  local hits, batch_hits = unpack(call('HMGET', group.meta, 'hits', 'batch_hits'))
  group.ids, group.hits = ids, tonumber(hits) or 0
  group.bases = call('HMGET', group.base, unpack(ids))
  group.batched = batch_hits and call('HMGET', group.batch, unpack(ids)) or {}
  call('HLEN', group.buffer)
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

-- Note the call and its requests. If Redis refuses the first write, as it does where memory is
-- full, the script ends there, and nothing was done.
local is_noted = false
if requests > 0 and new_fields[1] then
  if caller ~= '' then call('HSET', calls, caller, n) end
  is_noted = caller ~= ''
  call('HSET', memory, unpack(new_fields))
end

-- change the counters of each partition
local reply, pair, is_long, stored_at = { 'OK' }, 0, false, nil
for _, group in ipairs(groups) do
  local buffer, meta, bases, batched = group.buffer, group.meta, group.bases, group.batched
  local change_arg, changes, tickets, replaced = group.first_pair - 1, 0, nil, nil
  for i, id in ipairs(group.ids) do
    pair, change_arg = pair + 1, change_arg + 2
    local field = requests > 0 and field_of[pair]
    local word = field and (word_of[pair] or words_now[field] and 'BEFORE:' .. words_now[field])
    local base = replaced and replaced[id] or bases[i]
    local row = base and sub(base, row_begins)
    local row_value = row and tonumber(row)
    if word then
      field = nil
    elseif row_value then
      -- Unless it was noted with its requests, the call is noted here, before its first change. A
      -- call without a caller has nothing to note. It writes a field and deletes it, because HSET
      -- ends the script if Redis takes no writes.
      if not is_noted then
        call('HSET', calls, caller, n)
        if caller == '' then call('HDEL', calls, '') end
        is_noted = true
      end
      local change, settled = ARGV[change_arg], row_value
      if batched[i] then settled = row_value + (tonumber(batched[i]) or nan) end
      local amount = change == '1' and 1 or tonumber(change) or nan
      local after, waiting, is_broken
      local sum = settled + amount
      -- A change that fits without what is pending mostly fits with it, too. So it is added without
      -- reading the buffer, and taken back if it does not fit.
      if sum >= low and sum <= high and settled >= low and settled <= high
        and settled % 1 == 0 and amount > -limit and amount < limit then
        local pending = pcall('HINCRBY', buffer, id, change)
        after = type(pending) == 'number' and settled + pending or nil
        if after and (after < low or after > high or pending <= -limit or pending >= limit) then
          -- Only what was pending before can be the cause. So the field is not new, and stays.
          call('HINCRBY', buffer, id, ('%.0f'):format(0 - amount))
          after = nil
        end
      end
      if not after then after, waiting, is_broken = add(buffer, id, settled, change) end
      if after then
        changes = changes + 1
        is_long = is_long or after >= 1e14 or after <= -1e14
      end
      word = after or is_broken and 'BADSTATE' or refusal(base, settled, batched[i], waiting)
    elseif id == '' or #id > 255 then
      word = 'BADID'
    elseif row and not row:find('^ticket ') then
      word = 'BADSTATE'
    end
    -- without a word the row has to be read: callers that miss a counter share its ticket
    if not word then
      stored_at = stored_at or ('%013.0f '):format(now_ms or read_clock())
      if row_value or not row then row = 'ticket ' .. ticket_name end
      tickets = tickets or {}
      tickets[#tickets + 1] = id
      tickets[#tickets + 1] = stored_at .. row
      replaced = replaced or {}
      replaced[id] = stored_at .. row
      word = 'MISS:' .. row:sub(#'ticket ' + 1)
    end
    if field and (type(word) == 'number' or word:find('^RANGE:')) then
      local text = type(word) == 'number' and ('%.0f'):format(word) or word
      words_now[field] = text
      decided[#decided + 1], decided[#decided + 2] = field, text .. ending
    elseif field then
      -- any other word decides nothing: the request may succeed later
      undecided[#undecided + 1] = field
    end
    reply[pair + 1] = word
  end
  if tickets then call('HSET', group.base, unpack(tickets)) end
  local before, total = group.hits, group.hits + changes
  if changes > 0 then call('HSET', meta, 'hits', ('%.0f'):format(total)) end
  if changes > 0 and before == 0 then
    call('HSET', meta, 'first_at', ('%.0f'):format(now_ms or read_clock()))
    -- a partition that was never configured has no incarnation
    call('HSETNX', meta, 'incarnation', ticket_name) -- guard: Incarnation
  end
  if before < 64 and total >= 64 then -- lua/README.md, "Small hashes"
    call('HSET', buffer, '', (' '):rep(256))
    call('HDEL', buffer, '')
  end
end

-- note the words of requests and pairs; table.concat would write only 14 digits of a number
if requests > 0 and undecided[1] then call('HDEL', memory, unpack(undecided)) end
if requests > 0 and decided[1] then call('HSET', memory, unpack(decided)) end
local words = reply
if is_long then
  words = {}
  for i, word in ipairs(reply) do
    words[i] = type(word) == 'number' and ('%.0f'):format(word) or word
  end
end
if caller ~= '' then call('HSET', calls, caller, n .. ' ' .. table.concat(words, ' ', 2)) end
return reply
