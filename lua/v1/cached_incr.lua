-- cached_incr, revision 1
-- Changes counters that have a base, and returns each one's new value: base + batch + buffer.
--
-- KEYS
--   1 calls         hash      of the caller's home partition: caller -> "N WORD ...", its last call; =now, =before
--   2 calls_before  hash      the same of the epoch before
--   3 base          hash      id -> what the row held when the counter was seeded or last saved; "ticket HEX16" before
--   4 buffer        hash      id -> pending delta
--   5 batch         hash      id -> delta
--   6 meta          hash      hits, first_at, incarnation
--   7 schedule      zset      id -> ms: when it may be deleted; then these five keys of the node's next partition
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
-- REPEAT  safe, whoever repeats it, with a caller
-- SINCE   0.1.0

local call, tonumber, format, seen = redis.call, tonumber, string.format, {}
local own_kind, caller, n, epoch, arg = 'cached', ARGV[1], ARGV[2], ARGV[3], 8
for k = 3, #KEYS, 5 do
  local pairs_here = not seen[KEYS[k]] and tonumber(ARGV[arg]) or 0
  arg, seen[KEYS[k]] = pairs_here > 0 and arg + 1 + 2 * pairs_here or math.huge, true
end
if #KEYS < 7 or #KEYS % 5 ~= 2 or arg ~= #ARGV + 1 or #ARGV > 2007 + #KEYS / 5 then
  return redis.error_reply('BADARG expected for every five keys from the 3rd on: pairs, and so many pairs')
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
local time = ARGV[4] ~= '' and { '0', ARGV[4] .. '000' } or call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local name = redis.sha1hex(table.concat({ KEYS[3], caller, n, time[1], time[2] }, ' ')):sub(1, 16) -- never given twice

-- the sum as text, nil beyond i64: Lua's numbers are exact below 2^53 only, so Redis adds, in a field of no caller
local function exact_sum(...)
  local sum = call('HSET', KEYS[1], '', '0')
  for _, number in ipairs({ ... }) do
    sum = type(sum) == 'table' and sum or redis.pcall('HINCRBY', KEYS[1], '', number)
  end
  local text = type(sum) ~= 'table' and call('HGET', KEYS[1], '')
  call('HDEL', KEYS[1], '')
  return text
end

-- the pending delta and the value after the change, as texts; false and a refusal
local function changed(base, in_flight, waiting, change)
  local set = change:match('^=(.+)')
  local saved, cut, pending_now = tonumber(base), tonumber(in_flight) or 0 / 0, tonumber(waiting) or 0 / 0
  local value, amount = saved + cut + pending_now, tonumber(set or change) or 0 / 0
  local delta, after, pending = set and amount - value or amount
  local size = math.max(math.abs(saved), math.abs(cut), math.abs(pending_now))
  if value % 1 == 0 and size < 1e14 and math.abs(delta) < 1e14 and delta % 1 == 0 then
    value, after, pending = format('%d', value), format('%d', value + delta), format('%d', pending_now + delta)
  else
    value = exact_sum(base, in_flight, waiting)
    if not value then return false, 'BADSTATE' end
    local is_lowest = value == '-9223372036854775808' -- no i64 is its opposite
    local minus = is_lowest and '9223372036854775807' or (('-' .. value):gsub('^%-%-', ''):gsub('^%-0$', '0'))
    local difference = set and exact_sum(set, minus, is_lowest and '1' or '0') or change
    after, pending = exact_sum(value, difference), exact_sum(waiting, difference)
  end
  local sum = tonumber(pending and after or nil) or 0 / 0
  local is_within = (delta >= 0 and not set or sum >= low) and (delta <= 0 and not set or sum <= high)
  return is_within and pending, is_within and after or 'RANGE:' .. value
end

-- everything is read before anything is written: a key of another type ends the script here
local words, reply, writes, from = {}, { 'OK' }, {}, 8
for k = 3, #KEYS, 5 do
  local base_key, buffer, batch, meta, schedule = unpack(KEYS, k, k + 4)
  local count, deltas, tickets, due, latest = ARGV[from] + 0, {}, {}, {}, {}
  local ids = { unpack(ARGV, from + 1, from + count) } -- of its full size: a table that grows is slow
  for i = 1, count do ids[i] = ARGV[from + 2 * i - 1] end
  local bases, waits = call('HMGET', base_key, unpack(ids)), call('HMGET', buffer, unpack(ids))
  local cut = (count == 1 or call('EXISTS', batch) == 1) and call('HMGET', batch, unpack(ids)) or {}
  for i, id in ipairs(ids) do
    local base, word = bases[i], 'BADID'
    if tonumber(base or nil) then
      local waiting = latest[id] or waits[i] or '0'
      local pending, result = changed(base, cut[i] or '0', waiting, ARGV[from + 2 * i])
      word, latest[id] = result, pending or waiting
      if pending then deltas[#deltas + 1], deltas[#deltas + 2] = id, pending end
    elseif id ~= '' and #id < 256 then
      local ticket = base or 'ticket ' .. name
      tickets[#tickets + 1], tickets[#tickets + 2] = id, ticket
      due[#due + 1], due[#due + 2] = now_ms + ARGV[5], id
      word = ticket:find('^ticket ') and 'MISS:' .. ticket:sub(8) or 'BADSTATE'
    end
    words[#words + 1] = word
    reply[#reply + 1] = tonumber(word) and math.abs(word) < 2^53 and word + 0 or word
  end
  call('ZCARD', schedule)
  writes[k] = { deltas, tickets, due, tonumber(call('HGET', meta, 'hits')) or 0 }
  from = from + 1 + 2 * count
end
-- the first write is refused where Redis takes none
if caller ~= '' then call('HSET', KEYS[1], caller, n .. ' ' .. table.concat(words, ' ')) end
for k = 3, #KEYS, 5 do
  local deltas, tickets, due, before = unpack(writes[k])
  local buffer, meta, hits = KEYS[k + 1], KEYS[k + 3], before + #deltas / 2
  if due[1] and call('ZADD', KEYS[k + 4], unpack(due)) then call('HSET', KEYS[k], unpack(tickets)) end
  if hits > before then
    call('HSET', buffer, unpack(deltas))
    call('HSET', meta, 'hits', format('%.0f', hits))
    if before == 0 then call('HSET', meta, 'first_at', format('%.0f', now_ms)) end
    if before == 0 then call('HSETNX', meta, 'incarnation', name) end -- of a partition that nobody configured
  end
  -- up to 512 fields Redis walks a hash as a list; a field longer than any id makes it a table
  local longer = before < 64 and hits >= 64 and (' '):rep(256)
  if longer and call('HSET', buffer, longer, '0') then call('HDEL', buffer, longer) end
end
return reply
