-- cached_incr, revision 1
-- Changes counters that have a base, and returns each one's new value: base + batch + buffer.
--
-- KEYS
--   1 calls         hash      of the caller's home partition: caller -> "N WORD ...", its last call; =now, =before
--   2 calls_before  hash      the same of the epoch before
--   3 base          hash      id -> "DUE_MS ROW", as cached_seed stores it, or "DUE_MS ticket HEX16" before that
--   4 buffer        hash      id -> pending delta
--   5 batch         hash      id -> delta
--   6 meta          hash      hits, first_at, incarnation, batch_hits; then these four of the node's next partition
-- ARGV
--   1 caller        string    random, not beginning with "="; it has one call in flight; "" gives up the fence
--   2 n             integer   number of the call, higher than the caller's last, 1 to 2^53
--   3 epoch         string    as family_epoch returned it
--   4 now_ms        integer   "" for the server's clock; anything else is for tests
--   5 ticket_ms     integer   how long a ticket is kept
--   6 min           integer   a change downwards must not end below it; smaller than 2^53 in size; "" for none
--   7 max           integer   a change upwards must not end above it; likewise
--   8 pairs, (id, change)...  list  for each partition how many pairs, and the pairs, 1000 in all at most; id: 1 to 255
--                             bytes; change: an i64 to add, or "=" and an i64 to set
-- REPLIES
--   {"OK", word...}           for each pair the new value, an integer, or a string beyond 2^53; or why it was not
--                             changed: MISS:ticket, it has no base: seed it, call again; RANGE:value, beyond i64 or
--                             the bounds; BADID, too long or empty; BADSTATE, what is stored is not an integer
--   {"DUP", words}            executed before, nothing done now; the same words, separated by spaces
--   {"PASSED"}                the caller has made a later call: nothing done now, and not known what was done before
--   {"EXPIRED"}               the epoch is not known (any more): nothing done now, and not known what was done before
-- ERRORS
--   BADARG                    the arguments do not fit the keys, or the family is of another kind; nothing done
-- REPEAT  safe with a caller, from any process
-- SINCE   0.1.0

local call, tonumber, sub, ARGV, nan, seen = redis.call, tonumber, string.sub, ARGV, 0 / 0, {}
local own_kind, caller, n, epoch, arg = 'cached', ARGV[1], ARGV[2], ARGV[3], 8
for k = 3, #KEYS, 4 do
  local pairs_here = not seen[KEYS[k]] and tonumber(ARGV[arg]) or 0
  arg, seen[KEYS[k]] = pairs_here > 0 and arg + 1 + 2 * pairs_here or math.huge, true
end
if #KEYS < 6 or #KEYS % 4 ~= 2 or arg ~= #ARGV + 1 or #ARGV > 2007 + #KEYS / 4 then
  return redis.error_reply('BADARG expected for every four keys from the 3rd on: pairs, and so many pairs')
end

-- the fence, word for word the same in each counting script: a call counts once, however often it arrives
local is_number = n:find('^[1-9]%d*$') and (#n < 16 or #n == 16 and n <= '9007199254740992')
if caller ~= '' and (caller:byte() == 61 or not is_number) then
  return redis.error_reply('BADARG expected n of 1 to 2^53, and a caller that does not begin with =')
end
local now, kind, last, max_pending = unpack(redis.call('HMGET', KEYS[1], '=now', '=kind', caller, '=max_pending'))
if kind and kind ~= own_kind then return redis.error_reply('BADARG the family is ' .. kind .. ', not ' .. own_kind) end
if caller ~= '' and epoch ~= now and epoch ~= redis.call('HGET', KEYS[1], '=before') then return { 'EXPIRED' } end
last = last or epoch ~= now and redis.call('HGET', KEYS[2], caller)
local last_n = last and (tonumber(last) or tonumber(last:match('^%d+')))
if last_n and n - last_n < 0 then return { 'PASSED' } end
if last_n and n - last_n == 0 then return { 'DUP', last:match(' (.+)') or '' } end

local low, high = ARGV[6] == '' and -math.huge or ARGV[6] + 0, ARGV[7] == '' and math.huge or ARGV[7] + 0
-- the time, and a name that is never given twice
local function read_clock()
  local time = ARGV[4] ~= '' and { '0', ARGV[4] .. '000' } or call('TIME')
  local name = redis.sha1hex(table.concat({ KEYS[3], caller, n, time[1], time[2] }, ' ')):sub(1, 16)
  return time[1] * 1000 + math.floor(time[2] / 1000), name
end

-- the sum as text, nil beyond i64: Lua's numbers are exact below 2^53 only, so Redis adds, in a field of no caller
local function exact_sum(...)
  local sum = call('HSET', KEYS[1], '', '0')
  for _, each in ipairs({ ... }) do sum = type(sum) == 'table' and sum or redis.pcall('HINCRBY', KEYS[1], '', each) end
  local text = type(sum) ~= 'table' and call('HGET', KEYS[1], '')
  call('HDEL', KEYS[1], '')
  return text
end

-- the pending delta and the value after the change; false and a refusal
local function changed(row, in_flight, waiting, change)
  local set = change:byte() == 61 and sub(change, 2)
  local saved, cut, pending = tonumber(row), tonumber(in_flight) or nan, tonumber(waiting) or nan
  local value = saved + cut + pending
  local delta = (tonumber(set or change) or nan) - (set and value or 0)
  local after = value + delta
  if saved * saved + cut * cut + pending * pending + delta * delta < 1e26 and value % 1 == 0 and delta % 1 == 0 then
    pending = pending + delta
  else
    value = exact_sum(row, in_flight, waiting)
    if not value then return false, 'BADSTATE' end
    local minus = (('-' .. value):gsub('^%-%-', ''):gsub('^%-0$', '0')) -- that of the lowest i64 is beyond i64
    local amount = set and exact_sum(set, minus) or change
    after, pending = exact_sum(value, amount), exact_sum(waiting, amount)
  end
  local sum = tonumber(pending and after or nil) or nan
  local is_within = (delta >= 0 and not set or sum >= low) and (delta <= 0 and not set or sum <= high)
  return is_within and pending, is_within and after or 'RANGE:' .. value
end

-- everything is read before anything is written: a key of another type ends the script here
local reply, at, writes, from, now_ms, name, due = { 'OK', nil }, 1, {}, 8, nil, nil, nil
for k = 3, #KEYS, 4 do
  local count, deltas, changes, tickets, missed, latest = ARGV[from] + 0, {}, 0, {}, 0, {}
  local ids = { unpack(ARGV, from + 1, from + count) } -- of its full size: a table that grows is slow
  for i = 1, count do ids[i] = ARGV[from + 2 * i - 1] end
  local bases, waits = call('HMGET', KEYS[k], unpack(ids)), call('HMGET', KEYS[k + 1], unpack(ids))
  local hits, batch_hits = unpack(call('HMGET', KEYS[k + 3], 'hits', 'batch_hits'))
  local cut = batch_hits and call('HMGET', KEYS[k + 2], unpack(ids)) or {}
  for i, id in ipairs(ids) do
    local row, word = bases[i] and sub(bases[i], 15), 'BADID'
    if row and tonumber(row) then
      local waiting = latest[id] or waits[i] or 0
      local pending, result = changed(row, cut[i] or 0, waiting, ARGV[from + 2 * i])
      word, latest[id] = result, pending or waiting
      if pending then deltas[changes + 1], deltas[changes + 2], changes = id, pending, changes + 2 end
    elseif id ~= '' and #id < 256 then
      if not name then now_ms, name = read_clock() end
      row, due = row or 'ticket ' .. name, due or ('%013.0f '):format(now_ms + ARGV[5])
      tickets[missed + 1], tickets[missed + 2], missed = id, due .. row, missed + 2
      word = row:find('^ticket ') and 'MISS:' .. row:sub(8) or 'BADSTATE'
    end
    reply[at + 1], at = word, at + 1
  end
  writes[k] = { deltas, changes / 2, tickets, tonumber(hits) or 0 }
  from = from + 1 + 2 * count
end
-- the first write is refused where Redis takes none
if caller ~= '' then call('HSET', KEYS[1], caller, n .. ' ' .. table.concat(reply, ' ', 2)) end
for k = 3, #KEYS, 4 do
  local buffer, meta, deltas, changes, tickets, before = KEYS[k + 1], KEYS[k + 3], unpack(writes[k])
  if tickets[1] then call('HSET', KEYS[k], unpack(tickets)) end
  if deltas[1] and call('HSET', buffer, unpack(deltas)) then call('HSET', meta, 'hits', before + changes) end
  if deltas[1] and before == 0 then
    if not name then now_ms, name = read_clock() end
    call('HSET', meta, 'first_at', now_ms)
    call('HSETNX', meta, 'incarnation', name) -- of a partition that was never configured
  end
  -- up to 512 fields Redis walks a hash as a list; a field longer than any id makes it a table
  local longer = before < 64 and before + changes >= 64 and (' '):rep(256)
  if longer and call('HSET', buffer, longer, '0') then call('HDEL', buffer, longer) end
end
for i = 2, at do
  local value = type(reply[i]) == 'string' and tonumber(reply[i])
  if value and math.abs(value) < 2^53 then reply[i] = value end
end
return reply
