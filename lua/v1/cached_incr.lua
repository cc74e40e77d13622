-- cached_incr, revision 1
-- Changes counters that have a base, and returns each one's new value: base + batch + buffer.
--
-- KEYS
--   1 calls         hash      of the caller's home partition: caller -> "N WORD ...", its last
--                             call; =now, =before
--   2 calls_before  hash      the same of the epoch before
--   3 base          hash      id -> "DUE_MS ROW", as cached_seed stores it, or "DUE_MS ticket
--                             HEX16" before that
--   4 buffer        hash      id -> pending delta
--   5 batch         hash      id -> delta
--   6 meta          hash      hits, first_at, incarnation, batch_hits; then these four of the
--                             node's next partition
-- ARGV
--   1 caller        string    random, no "=" in front; one call in flight; "" gives up the fence
--   2 n             integer   number of the call, higher than the caller's last, 1 to 2^53
--   3 epoch         string    as family_epoch returned it
--   4 now_ms        integer   "" for the server's clock; anything else is for tests
--   5 ticket_ms     integer   how long a ticket is kept, below 10^12
--   6 min           integer   a change downwards must not end below it; smaller than 2^53 in size;
--                             "" for none
--   7 max           integer   a change upwards must not end above it; likewise
--   8 pairs, (id, change)...  list  for each partition how many pairs, and the pairs, 1000 in all
--                                   at most; id: 1 to 255 bytes; change: an i64 to add, or "=" and
--                                   an i64 to set
-- REPLIES
--   {"OK", word...}           for each pair the new value, an integer, or a string beyond 2^53; or
--                             why it was not changed: MISS:ticket, it has no base: seed it, call
--                             again; RANGE:value, beyond i64 or the bounds; BADID, too long or
--                             empty; BADSTATE, what is stored is not an integer
--   {"DUP", words}            executed before, nothing done now; the same words, separated by
--                             spaces
--   {"PASSED"}  the caller made a later call: nothing done now, the outcome is unknown
--   {"EXPIRED"}  unknown epoch, or unknown call before that of a request: nothing done now, the
--                             outcome of earlier arrivals is unknown
-- ERRORS
--   BADARG                    the arguments do not fit the keys, or the family is of another kind;
--                             nothing done
-- REPEAT  safe with a caller, from any process
-- SINCE   0.1.0

local call, pcall, type, tonumber = redis.call, redis.pcall, type, tonumber
local sub, ARGV, nan = string.sub, ARGV, 0 / 0
local own_kind, caller, n, epoch = 'cached', ARGV[1], ARGV[2], ARGV[3]
local arg, known = 8, {}
for k = 3, #KEYS, 4 do
  local count = not known[KEYS[k]] and tonumber(ARGV[arg]) or 0
  arg = count > 0 and count % 1 == 0 and arg + 1 + 2 * count or math.huge
  known[KEYS[k]] = true
end
if #KEYS < 6 or #KEYS % 4 ~= 2 or arg ~= #ARGV + 1 or #ARGV > 2007 + #KEYS / 4 then
  return redis.error_reply('BADARG expected for every four keys from the 3rd on: pairs, '
    .. 'and so many pairs, 1000 in all at most')
end
local function is_bound(text) return text == '' or text:find('^%-?%d+$') end
local is_time = ARGV[5]:find('^%d+$') and #ARGV[5] < 13
if not (is_time and is_bound(ARGV[6]) and is_bound(ARGV[7])) then
  return redis.error_reply('BADARG expected ticket_ms, and integers or "" for min and max')
end
-- the fence, word for word the same in each counting script: a repeated call does not count again
local is_number = n:find('^[1-9]%d*$') and (#n < 16 or #n == 16 and n <= '9007199254740992')
if caller ~= '' and (caller:byte() == 61 or not is_number) then
  return redis.error_reply('BADARG expected n of 1 to 2^53, and a caller without = in front')
end
local state = call('HMGET', KEYS[1], '=now', '=kind', caller, '=max_pending')
local now, kind, last, max_pending = state[1], state[2], state[3], state[4]
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
-- a request's later call is executed only after a miss of the one before (docs/protocol.md, 4.5)
if caller:find('^request:') and n ~= '1' then
  local words = last and last:match(' (.+)') or ''
  if last and not words:find('^MISS:') then return { 'DUP', words } end -- guard: Predecessor
  if n - (last_n or 0) > 1 then return { 'EXPIRED' } end -- guard: Predecessor
end

local low = ARGV[6] == '' and -math.huge or ARGV[6] + 0
local high = ARGV[7] == '' and math.huge or ARGV[7] + 0
local is_bounded, has_text = ARGV[6] ~= '' or ARGV[7] ~= '', false
local function is_within(after, is_lowered, is_raised)
  return not (is_lowered and after < low) and not (is_raised and after > high)
end

-- the sum as text, nil beyond i64: Redis adds, in a field of no caller (docs/protocol.md, 7)
local function exact_sum(...)
  local sum = call('HSET', KEYS[1], '', '0')
  for _, each in ipairs({ ... }) do
    if type(sum) ~= 'table' then sum = pcall('HINCRBY', KEYS[1], '', each) end
  end
  local text = type(sum) ~= 'table' and call('HGET', KEYS[1], '')
  call('HDEL', KEYS[1], '')
  return text or nil
end

-- adds a change to what is pending, and returns the new value; or nil and the refusal
local function add_exactly(buffer, id, row, in_flight, change)
  local value = exact_sum(row, in_flight or 0, call('HGET', buffer, id) or 0)
  if not value then return nil, 'BADSTATE' end
  local target, delta = change:match('^=(.*)'), change
  if target then
    -- that of the lowest i64 is beyond i64
    local minus = ('-' .. value):gsub('^%-%-', ''):gsub('^%-0$', '0')
    delta = exact_sum(target, minus)
  end
  local after, amount = delta and exact_sum(value, delta), tonumber(delta) or 0
  local is_added = after and is_within(tonumber(after), target or amount < 0, target or amount > 0)
    and type(pcall('HINCRBY', buffer, id, delta)) ~= 'table'
  if not is_added then return nil, 'RANGE:' .. value end
  has_text = true
  return after
end

-- the same in Lua's numbers, where they are exact; a sum that is not is taken back first
local function add(buffer, id, row, saved, in_flight, change)
  local cut = not in_flight and 0 or tonumber(in_flight) or nan
  local amount, delta, waiting = change == '1' and 1 or tonumber(change), change, 0
  local is_set = not amount
  if is_set or is_bounded then waiting = tonumber(call('HGET', buffer, id) or 0) or nan end
  if is_set then
    amount = (change:byte() == 61 and tonumber(sub(change, 2)) or nan) - saved - cut - waiting
    delta = ('%.0f'):format(amount)
  end
  local after = saved + cut + waiting + amount
  local size = saved * saved + cut * cut + amount * amount
  local is_exact = size < 1e26 and after % 1 == 0
    and (not is_bounded or is_within(after, is_set or amount < 0, is_set or amount > 0))
  local pending = is_exact and pcall('HINCRBY', buffer, id, delta)
  if type(pending) == 'number' then
    if pending * pending < 1e26 then return saved + cut + pending end
    call('HINCRBY', buffer, id, ('%.0f'):format(0 - amount))
  end
  return add_exactly(buffer, id, row, in_flight, change)
end

local now_ms, name
-- returns the time, and makes a name that is never given twice
local function read_clock()
  local time = ARGV[4] ~= '' and { '0', ARGV[4] .. '000' } or call('TIME')
  local seed = table.concat({ KEYS[3], caller, n, time[1], time[2] }, ' ')
  now_ms, name = time[1] * 1000 + math.floor(time[2] / 1000), redis.sha1hex(seed):sub(1, 16)
  return now_ms
end

-- everything is read before anything is written: a key of another type ends the script here
local reads, first = {}, 9
for k = 3, #KEYS, 4 do
  local count, ids = tonumber(ARGV[first - 1]), {}
  for i = 1, count do ids[i] = ARGV[first + 2 * i - 2] end
  local hits, batch_hits = unpack(call('HMGET', KEYS[k + 3], 'hits', 'batch_hits'))
  local read = { ids = ids, first = first, before = tonumber(hits) or 0 }
  read.bases = call('HMGET', KEYS[k], unpack(ids))
  read.cut = batch_hits and call('HMGET', KEYS[k + 2], unpack(ids)) or {}
  call('HLEN', KEYS[k + 1])
  reads[k], first = read, first + 1 + 2 * count
end

local reply, is_noted, due = { 'OK' }, caller == '', nil
for k = 3, #KEYS, 4 do
  local buffer, meta, read = KEYS[k + 1], KEYS[k + 3], reads[k]
  local bases, cut, arg_before, changes, tickets = read.bases, read.cut, read.first - 1, 0, {}
  for i, id in ipairs(read.ids) do
    local row, word = bases[i] and sub(bases[i], 15), 'BADID'
    local saved = row and tonumber(row)
    if saved then
      -- the call is noted before the first hit: where Redis refuses that, nothing is counted
      if not is_noted then call('HSET', KEYS[1], caller, n) end
      is_noted = true
      local after, refusal = add(buffer, id, row, saved, cut[i], ARGV[arg_before + 2 * i])
      if after then changes = changes + 1 end
      word = after or refusal
    elseif id ~= '' and #id < 256 then
      due = due or ('%013.0f '):format((now_ms or read_clock()) + ARGV[5])
      row = row or 'ticket ' .. name
      tickets[#tickets + 1] = id
      tickets[#tickets + 1] = due .. row
      word = row:find('^ticket ') and 'MISS:' .. row:sub(8) or 'BADSTATE'
    end
    reply[#reply + 1] = word
  end
  if tickets[1] then call('HSET', KEYS[k], unpack(tickets)) end
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
if caller ~= '' then call('HSET', KEYS[1], caller, n .. ' ' .. table.concat(reply, ' ', 2)) end
for i = 2, has_text and #reply or 0 do
  local value = type(reply[i]) == 'string' and tonumber(reply[i])
  if value and math.abs(value) < 2^53 then reply[i] = value end
end
return reply
