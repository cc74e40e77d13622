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

local call, pcall, type, tonumber = redis.call, redis.pcall, type, tonumber
local sub, ARGV, nan, limit = string.sub, ARGV, 0 / 0, 2^53
local own_kind, caller, n, epoch = 'cached', ARGV[1], ARGV[2], ARGV[3]
local own_settings = { '=min', '=max' }
local requests = tonumber(ARGV[5]) or -1
local last_key = requests == 0 and #KEYS or #KEYS - 2
local tail, known = requests % 1 == 0 and requests >= 0 and 6 or math.huge, {}
for k = 3, last_key, 4 do
  local count = not known[KEYS[k]] and tonumber(ARGV[tail]) or 0
  tail = count > 0 and count % 1 == 0 and tail + 1 + 2 * count or math.huge
  known[KEYS[k]] = true
end
if last_key < 6 or last_key % 4 ~= 2 or tail + 3 * requests ~= #ARGV + 1
  or tail > 2006 + last_key / 4 then
  return redis.error_reply('BADARG expected for every four keys from the 3rd on: pairs, '
    .. 'and so many pairs, 1000 in all at most; pair, request, generation of each request')
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

-- numbers below 2^53 in size, and those sums of them that stay below it, are exact in Lua
local low, high = tonumber(state[4] or 1 - limit), tonumber(state[5] or limit - 1)
local function is_small(number) return number > -limit and number < limit end

-- looks at what else is pending, adds a change, and returns the new value; or nil and what is
-- pending
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
  local is_out = (is_set or amount < 0) and after < low or (is_set or amount > 0) and after > high
  local is_exact = after % 1 == 0 and is_small(settled) and is_small(amount)
    and is_small(pending) and is_small(after)
  local added = is_exact and not is_out and pcall('HINCRBY', buffer, id, delta)
  if type(added) == 'number' then return after end
  -- a table is an error of Redis: a command that the user must not execute
  return nil, found, type(added) == 'table'
end

local now_ms, name
-- returns the time, and makes a name that is never given twice
local function read_clock()
  local time = ARGV[4] ~= '' and { '0', ARGV[4] .. '000' } or call('TIME')
  local seed = table.concat({ KEYS[3], caller, n, time[1], time[2] }, ' ')
  now_ms, name = time[1] * 1000 + math.floor(time[2] / 1000), redis.sha1hex(seed):sub(1, 16)
  return now_ms
end

-- returns why a change is refused, or nil if the row has to be read first (docs/protocol.md, 4.1)
local function refusal(base, settled, cut, waiting)
  local value = settled + (waiting and (tonumber(waiting) or nan) or 0)
  if value % 1 ~= 0 then return 'BADSTATE' end
  if not is_small(settled) or not is_small(value) then return 'BEYOND' end
  local age = not (cut or waiting) and (now_ms or read_clock()) - (tonumber(sub(base, 1, 13)) or 0)
  if age and (age < 0 or age > 1000) then return nil end -- guard: OldRow
  return ('RANGE:%.0f'):format(value)
end

-- everything is read before anything is written: a key of another type ends the script here
local reads, first, ids = {}, 7, requests > 0 and {}
for k = 3, last_key, 4 do
  local count, own = tonumber(ARGV[first - 1]), {}
  for i = 1, count do
    own[i] = ARGV[first + 2 * i - 2]
    if requests > 0 then ids[#ids + 1] = own[i] end
  end
  local hits, batch_hits = unpack(call('HMGET', KEYS[k + 3], 'hits', 'batch_hits'))
  local read = { ids = own, first = first, before = tonumber(hits) or 0 }
  read.bases = call('HMGET', KEYS[k], unpack(own))
  read.cut = batch_hits and call('HMGET', KEYS[k + 2], unpack(own)) or {}
  call('HLEN', KEYS[k + 1])
  reads[k], first = read, first + 1 + 2 * count
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

local reply, is_noted, is_long, at = { 'OK' }, false, false, nil
if fresh and fresh[1] then
  if caller ~= '' then call('HSET', KEYS[1], caller, n) end
  is_noted = caller ~= ''
  call('HSET', KEYS[#KEYS - 1], unpack(fresh))
end
for k = 3, last_key, 4 do
  local buffer, meta, read = KEYS[k + 1], KEYS[k + 3], reads[k]
  local bases, cut, arg_before, changes = read.bases, read.cut, read.first - 1, 0
  local tickets, replaced
  for i, id in ipairs(read.ids) do
    local base, field = replaced and replaced[id] or bases[i], requests > 0 and field_of[#reply]
    local word = field and (word_of[#reply] or got[field] and 'BEFORE:' .. got[field])
    local row = base and sub(base, 15)
    local saved = row and tonumber(row)
    if word then
      field = nil
    elseif saved then
      -- the call is noted before the first hit: where Redis refuses that, nothing is counted
      if not is_noted then call('HSET', KEYS[1], caller, n) end
      if not is_noted and caller == '' then call('HDEL', KEYS[1], '') end
      is_noted = true
      local change, settled = ARGV[arg_before + 2 * i], saved
      if cut[i] then settled = saved + (tonumber(cut[i]) or nan) end
      local amount = change == '1' and 1 or tonumber(change) or nan
      local after, waiting, is_broken
      local ends = settled + amount
      -- a change that fits without what is pending mostly fits with it, too
      if ends >= low and ends <= high and settled >= low and settled <= high
        and settled % 1 == 0 and amount > -limit and amount < limit then
        local pending = pcall('HINCRBY', buffer, id, change)
        after = type(pending) == 'number' and settled + pending or nil
        if after and (after < low or after > high or pending <= -limit or pending >= limit) then
          -- then what was pending is not 0, and its field stays
          call('HINCRBY', buffer, id, ('%.0f'):format(0 - amount))
          after = nil
        end
      end
      if not after then after, waiting, is_broken = add(buffer, id, settled, change) end
      if after then
        changes = changes + 1
        is_long = is_long or after >= 1e14 or after <= -1e14
      end
      word = after or is_broken and 'BADSTATE' or refusal(base, settled, cut[i], waiting)
    elseif id == '' or #id > 255 then
      word = 'BADID'
    elseif row and not row:find('^ticket ') then
      word = 'BADSTATE'
    end
    if not word then
      at = at or ('%013.0f '):format(now_ms or read_clock())
      if saved or not row then row = 'ticket ' .. name end
      tickets = tickets or {}
      tickets[#tickets + 1] = id
      tickets[#tickets + 1] = at .. row
      replaced = replaced or {}
      replaced[id] = at .. row
      word = 'MISS:' .. row:sub(8)
    end
    if field and (type(word) == 'number' or word:find('^RANGE:')) then
      local text = type(word) == 'number' and ('%.0f'):format(word) or word
      got[field] = text
      decided[#decided + 1], decided[#decided + 2] = field, text .. mark
    elseif field then
      undecided[#undecided + 1] = field -- it may succeed later
    end
    reply[#reply + 1] = word
  end
  if tickets then call('HSET', KEYS[k], unpack(tickets)) end
  local before, total = read.before, read.before + changes
  if changes > 0 then call('HSET', meta, 'hits', ('%.0f'):format(total)) end
  if changes > 0 and before == 0 then
    call('HSET', meta, 'first_at', ('%.0f'):format(now_ms or read_clock()))
    -- of a partition that was never configured
    call('HSETNX', meta, 'incarnation', name) -- guard: Incarnation
  end
  if before < 64 and total >= 64 then -- lua/README.md, "Small hashes"
    call('HSET', buffer, '', (' '):rep(256))
    call('HDEL', buffer, '')
  end
end
if requests > 0 and undecided[1] then call('HDEL', KEYS[#KEYS - 1], unpack(undecided)) end
if requests > 0 and decided[1] then call('HSET', KEYS[#KEYS - 1], unpack(decided)) end
local words = reply
-- by itself Lua writes 14 digits
if is_long then
  words = {}
  for i, word in ipairs(reply) do
    words[i] = type(word) == 'number' and ('%.0f'):format(word) or word
  end
end
if caller ~= '' then call('HSET', KEYS[1], caller, n .. ' ' .. table.concat(words, ' ', 2)) end
return reply
