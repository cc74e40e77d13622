-- series_add, revision 1
-- Counts into the slices of every window, and into what is kept.
--
-- KEYS
--   1 calls         hash      of the caller's home partition: caller -> "N [INDEX:WORD ...]", its
--                             last call and the triples refused in it; =now, =before, =windows,
--                             =keep, =late, =max_pending
--   2 calls_before  hash      the same of the epoch before
--   3 calendar:day  zset      of the home, as series_calendar wrote it: date -> start in seconds
--   4 calendar:month  zset    likewise, of each month's first day
--   5 buffer        hash      id -> pending delta
--   6 meta          hash      hits, refused, first_at, incarnation
--   7 names         zset      name -> 0: those with anything in a window
--   8 idle          zset      name -> ms: when the last slice of it has left every window
--   9 series:LABEL:NAME...  hash  start in seconds -> count; for each triple one a window, in the
--                             order of the family's labels
-- ARGV
--   1 caller        string    random, no "=" in front; one call in flight; "" gives up the fence
--   2 n             integer   number of the call, higher than the caller's last, 1 to 2^53
--   3 epoch         string    as family_epoch returned it
--   4 now_ms        integer   "" for the server's clock; anything else is for tests
--   5 name, n, at   triples   name: 1 to 200 bytes; n: 1 or more; at: when it happened in Unix
--                             ms, "" for now; 1 to 100 triples
-- REPLIES
--   {"OK", hits, word...}  hits of the partition since the last rotation, 0 where nothing is kept;
--                    for each triple 1, or why it counts nowhere: RANGE (n or a sum is beyond i64),
--                    BADID (the name is too long, or empty), BADTIME (at is more than a
--                    minute ahead, has left every window, or what is kept takes it no more), FULL
--                    (the buffer holds max_pending other ids), WRONGTYPE (a foreign key),
--                    NOCALENDAR (the list of days or months ends before now: no reconciler runs)
--   {"DUP", refused}  executed before, nothing done now; "1:RANGE ..." are the triples refused then
--   {"PASSED"}  the caller made a later call: nothing done now, the outcome is unknown
--   {"EXPIRED"}  unknown epoch: nothing done now, the outcome of earlier arrivals is unknown
--   {"MISMATCH"}  the family's labels are others than those of the keys: nothing done now, the
--                    outcome of earlier arrivals is unknown. family_epoch returns them
-- ERRORS
--   BADARG  the arguments do not fit the keys; nothing done
-- REPEAT  safe with a caller, from any process
-- SINCE   0.1.0
-- CALLER  Partition::add_to_series in src/scripts/partition/series.rs
-- VECTORS lua/vectors/series_add.json

local call, pcall, format, KEYS, ARGV = redis.call, redis.pcall, string.format, KEYS, ARGV
local calls, calendar_of_days, calendar_of_months = KEYS[1], KEYS[3], KEYS[4]
local buffer, meta, names, idle, keys_before_series = KEYS[5], KEYS[6], KEYS[7], KEYS[8], 8
local own_kind, caller, n, epoch = 'series', ARGV[1], ARGV[2], ARGV[3]
local test_ms, args_before_triples = ARGV[4], 4

-- check the number of triples, and that each has equally many keys
local triples = (#ARGV - args_before_triples) / 3
local keys_of_triple = (#KEYS - keys_before_series) / triples
local fits = triples >= 1 and triples <= 100 and triples % 1 == 0 and keys_of_triple >= 1
if not fits or keys_of_triple % 1 ~= 0 then
  return redis.error_reply('BADARG expected 1 to 100 triples, and for each the keys of its windows')
end
local state = call('HMGET', calls, '=now', '=kind', caller,
  '=windows', '=keep', '=late', '=max_pending')
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

local window_settings, kept_labels = state[4] or '', state[5] or ''
local late_ms, max_pending = tonumber(state[6]) or 0, tonumber(state[7]) or 1000000
local time = test_ms ~= '' and { '0', test_ms .. '000' } or call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local now_s = math.floor(now_ms / 1000)

-- Returns the day or month of that time: its start and end, its date, and how many have begun by
-- then. Returns nothing if the calendar does not reach that time.
local function day_at(calendar, at_s)
  local begun = call('ZCOUNT', calendar, '-inf', format('%.0f', at_s))
  local two = call('ZRANGE', calendar, begun - 1, begun, 'WITHSCORES')
  local date, start, _, next_start = unpack(two)
  if begun > 0 and next_start then return tonumber(start), tonumber(next_start), date, begun end
end

-- find the current slice of each window; the slices of a label such as 60s have a length, those of
-- day and month are in a calendar
local windows, count, kept_in, longest, has_ended = {}, 0, 0, nil, false
for label, size in window_settings:gmatch('(%w+) (%d+)') do
  local length = tonumber(label:sub(1, -2))
  local window = { number = count + 1, size = tonumber(size), length = length }
  local slice_s = length
  if length then
    window.start = math.floor(now_s / length) * length
    window.name = format('%.0f', window.start)
  else
    local over
    window.calendar = label == 'month' and calendar_of_months or calendar_of_days
    window.start, over, window.name, window.begun = day_at(window.calendar, now_s)
    has_ended = has_ended or not over
    -- no day or month is longer than that
    slice_s = over and math.ceil((over - window.start) * 6 / 5) or 0
  end
  window.slice_s, window.reach_s = slice_s, size * slice_s
  if not longest or window.reach_s > longest.reach_s then longest = window end
  count = count + 1
  windows[count] = window
  if kept_labels ~= '' and (' ' .. kept_labels .. ' '):find(' ' .. label .. ' ', 1, true) then
    window.kept_label, kept_in = label, kept_in + 1
  end
  -- the keys of the first triple stand for those of all
  local key = KEYS[keys_before_series + count] or ''
  if label ~= key:match('^[^}]*}:series:(%w+):') then return { 'MISMATCH' } end
end
if count ~= keys_of_triple then return { 'MISMATCH' } end

-- A hit counts in targets: slices of windows, and ids of what is kept, which end with its name.
local function slice_target(window, start)
  return { window = window, field = format('%.0f', start) }
end
local function kept_target(window, slice_name)
  return { prefix = (kept_in > 1 and window.kept_label .. '/' or '') .. slice_name .. '/' }
end

-- the targets of a hit of now
local targets_now = {}
for _, window in ipairs(has_ended and {} or windows) do
  targets_now[#targets_now + 1] = slice_target(window, window.start)
  if window.kept_label then
    targets_now[#targets_now + 1] = kept_target(window, window.name)
  end
end

-- Returns the targets of a hit of that time: the windows that still have its slice, and what is
-- kept. Returns none if something that is kept does not take the hit any more: otherwise the hit
-- would be in a window, and missing from what is kept.
local function targets_at(at_ms)
  local targets, at_s = {}, math.floor(at_ms / 1000)
  for _, window in ipairs(windows) do
    local length = window.length
    local start, name, begun, slices_ago
    if length then
      start = math.floor(at_s / length) * length
      name, slices_ago = format('%.0f', start), (window.start - start) / length
    else
      local _
      start, _, name, begun = day_at(window.calendar, at_s)
      slices_ago = start and window.begun - begun
    end
    local is_in_window = start and slices_ago < window.size
    if is_in_window then targets[#targets + 1] = slice_target(window, start) end
    if window.kept_label then
      local is_kept = is_in_window or start and at_ms >= now_ms - late_ms
      if not is_kept then return {} end
      targets[#targets + 1] = kept_target(window, name)
    end
  end
  return targets
end

-- read all that is written below: a key of another type ends the script here
call('ZCARD', names)
call('ZCARD', idle)
local held = kept_in > 0 and call('HLEN', buffer) or 0
local hits = kept_in > 0 and tonumber(call('HGET', meta, 'hits')) or 0
local pending, may_be_full = held, held + triples * kept_in > max_pending

-- The first write notes the call. If Redis refuses it, as it does where memory is full, the script
-- ends here, and nothing was done. Redis accepts all later writes of the script, so from here on
-- only a single triple can fail. A call without a caller has nothing to note, and its ZADD with XX
-- changes nothing.
if caller == '' then call('ZADD', names, 'XX', '0', '') else call('HSET', calls, caller, n) end

-- count each triple
local reply, refused, opened, keys, fields, sums = { 'OK', 0 }, {}, {}, {}, {}, {}
local arg, keys_before = args_before_triples + 1, keys_before_series
for triple = 1, triples do
  local name, amount_text, at = ARGV[arg], ARGV[arg + 1], ARGV[arg + 2]
  local amount, at_ms, refusal, targets = tonumber(amount_text) or 0, now_ms, nil, targets_now
  if at ~= '' then at_ms = at:find('^%d+$') and #at <= 15 and tonumber(at) or math.huge end
  if at_ms < now_ms and not has_ended then targets = targets_at(at_ms) end
  if not targets[1] or at_ms > now_ms + 60000 then refusal = 'BADTIME' end
  if has_ended then refusal = 'NOCALENDAR' end
  if amount < 1 then refusal = 'RANGE' end
  if name == '' or #name > 200 then refusal = 'BADID' end
  local new_ids = 0
  for i = 1, may_be_full and not refusal and #targets or 0 do
    local prefix = targets[i].prefix
    if prefix and call('HEXISTS', buffer, prefix .. name) == 0 then new_ids = new_ids + 1 end
  end
  if new_ids > 0 and pending + new_ids > max_pending then refusal = 'FULL' end
  -- add to each target, until one refuses it
  local added, opens = 0, false
  while not refusal and added < #targets do
    local i = added + 1
    local target = targets[i]
    local key = target.prefix and buffer or KEYS[keys_before + target.window.number]
    local field = target.field or target.prefix .. name
    local sum = pcall('HINCRBY', key, field, amount_text)
    if type(sum) == 'table' then
      refusal = sum.err:find('WRONGTYPE') and 'WRONGTYPE' or 'RANGE'
    else
      keys[i], fields[i], sums[i] = key, field, sum
      added, opens = i, opens or sum == amount
    end
  end
  -- take back a triple that was refused, and note what is new of any other
  for i = 1, (refusal or opens) and added or 0 do
    local key, field = keys[i], fields[i]
    if refusal then
      if call('HINCRBY', key, field, '-' .. amount_text) == 0 then call('HDEL', key, field) end
    elseif sums[i] == amount and targets[i].prefix then
      pending = pending + 1
    elseif sums[i] == amount then
      opened[#opened + 1] = { key = key, window = targets[i].window, name = name }
    end
  end
  reply[triple + 2] = refusal or 1
  if refusal then refused[#refused + 1] = triple .. ':' .. refusal end
  arg, keys_before = arg + 3, keys_before + keys_of_triple
end
if refused[1] and caller ~= '' then
  call('HSET', calls, caller, n .. ' ' .. table.concat(refused, ' '))
end

-- note the hits of what is kept, and how many triples were refused
local counted = kept_in > 0 and triples - #refused or 0
if counted > 0 then
  reply[2] = call('HINCRBY', meta, 'hits', counted)
  if hits == 0 then
    call('HSET', meta, 'first_at', format('%.0f', now_ms))
    -- a partition that was never configured has no incarnation
    local incarnation = redis.sha1hex(meta .. caller .. n .. time[1] .. time[2]):sub(1, 16)
    call('HSETNX', meta, 'incarnation', incarnation) -- guard: Incarnation
  end
end
if kept_in > 0 and refused[1] then call('HINCRBY', meta, 'refused', #refused) end
if held < 64 and pending >= 64 then -- lua/README.md, "Small hashes"
  call('HSET', buffer, '', (' '):rep(256))
  call('HDEL', buffer, '')
end

-- Lets a key live until that time at least. A key that lives longer keeps its time, so that none
-- ends early after the clock stepped back.
local function prolong(key, until_ms)
  local ttl = until_ms - now_ms
  if call('PTTL', key) < ttl then call('PEXPIRE', key, format('%.0f', ttl)) end
end

-- where a slice opened, remove what has left the window, and let the window live until its last
-- slice has left it
for _, slice in ipairs(opened) do
  local key, window = slice.key, slice.window
  local reach_s, slice_s = window.reach_s, window.slice_s
  local gone = window.start - reach_s + slice_s -- the window's first slice,
  gone = gone - slice_s -- guard: Trim, and the one before it
  local lives_s = slice_s
  lives_s = lives_s + reach_s -- guard: Expiry
  local expires_ms = math.min((window.start + lives_s) * 1000, 1e16)
  call('HDEL', key, format('%.0f', gone))
  -- usually this was the only slice to remove; after a pause there are others
  local is_long = call('HLEN', key) > window.size
  for _, field in ipairs(is_long and call('HKEYS', key) or {}) do
    local start = tonumber(field) or math.huge
    local is_gone = start <= gone or start > window.start
    -- A slice that lies ahead stays: the clock stepped back, and reaches it again. So does a field
    -- that is not a time.
    if start > window.start then is_gone = false end -- guard: Ahead
    if is_gone then call('HDEL', key, field) end
  end
  prolong(key, expires_ms)
  -- note the name by its longest window, and remove up to 16 names that have been idle since
  if window == longest then
    call('ZADD', names, '0', slice.name)
    call('ZADD', idle, 'GT', format('%.0f', expires_ms), slice.name)
    local over = call('ZRANGEBYSCORE', idle, '-inf', format('%.0f', now_ms), 'LIMIT', '0', '16')
    -- Redis asks for one member at least
    call('ZREM', names, '', unpack(over))
    call('ZREM', idle, '', unpack(over))
    prolong(names, expires_ms)
    prolong(idle, expires_ms)
  end
end
return reply
