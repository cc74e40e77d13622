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

local call, pcall, format, KEYS, ARGV = redis.call, redis.pcall, string.format, KEYS, ARGV
local own_kind, caller, n, epoch = 'series', ARGV[1], ARGV[2], ARGV[3]
local own_settings = { '=windows', '=keep', '=late', '=max_pending' }
local triples = (#ARGV - 4) / 3
local a_triple = (#KEYS - 8) / triples
local fits = triples >= 1 and triples <= 100 and triples % 1 == 0 and a_triple >= 1
if not fits or a_triple % 1 ~= 0 then
  return redis.error_reply('BADARG expected 1 to 100 triples, and for each the keys of its windows')
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

local buffer, meta, names, idle = KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local time = ARGV[4] ~= '' and { '0', ARGV[4] .. '000' } or call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local late_ms, max = tonumber(state[6]) or 0, tonumber(state[7]) or 1000000
local now_s, keep, longest, has_ended = math.floor(now_ms / 1000), state[5] or '', nil, false
-- the day or month of that time: its start, end and date, and how many have begun by then
local function day_at(calendar, at_s)
  local begun = call('ZCOUNT', calendar, '-inf', format('%.0f', at_s))
  local two = call('ZRANGE', calendar, begun - 1, begun, 'WITHSCORES')
  if begun > 0 and two[4] then return tonumber(two[2]), tonumber(two[4]), two[1], begun end
end
-- each window with its current slice
local windows, kept_in, count = {}, 0, 0
for label, size in (state[4] or ''):gmatch('(%w+) (%d+)') do
  local length = tonumber(label:sub(1, -2))
  local start, over, name
  local window = { size = tonumber(size), length = length }
  if length then
    start = math.floor(now_s / length) * length
    name = format('%.0f', start)
    window.field = name
  else
    window.calendar = label == 'month' and KEYS[4] or KEYS[3]
    start, over, name, window.begun = day_at(window.calendar, now_s)
    has_ended = has_ended or not start
    length = start and math.ceil((over - start) * 6 / 5) or 0 -- no day or month is longer
    window.field = format('%.0f', start or 0)
  end
  window.start, window.name, window.longest, window.reach = start, name, length, size * length
  if not longest or window.reach > longest.reach then longest = window end
  count = count + 1
  windows[count], window.w, window.window = window, count, window
  if keep ~= '' and (' ' .. keep .. ' '):find(' ' .. label .. ' ', 1, true) then
    window.label, kept_in = label, kept_in + 1
  end
  if label ~= (KEYS[8 + count] or ''):match('^[^}]*}:series:(%w+):') then return { 'MISMATCH' } end
end
if count ~= a_triple then return { 'MISMATCH' } end

-- what a hit counts in: slices of windows, each a target with a field, and ids that are kept
local function kept_target(window, name)
  return { prefix = (kept_in > 1 and window.label .. '/' or '') .. name .. '/' }
end
local of_now = {}
for _, window in ipairs(has_ended and {} or windows) do
  of_now[#of_now + 1] = window
  if window.label then of_now[#of_now + 1] = kept_target(window, window.name) end
end
local function targets_at(at_ms)
  local targets, at_s = {}, math.floor(at_ms / 1000)
  for w, window in ipairs(windows) do
    local length, start, name, begun, ago = window.length
    if length then
      start = math.floor(at_s / length) * length
      name, ago = format('%.0f', start), (window.start - start) / length
    else
      local _
      start, _, name, begun = day_at(window.calendar, at_s)
      ago = start and window.begun - begun
    end
    local is_in = start and ago < window.size
    if is_in then
      targets[#targets + 1] = { w = w, window = window, field = format('%.0f', start) }
    end
    if window.label and (is_in or start and at_ms >= now_ms - late_ms) then
      targets[#targets + 1] = kept_target(window, name)
    elseif window.label then
      return {} -- it would be missing from what is kept
    end
  end
  return targets
end

for k = 7, 8 do call('ZCARD', KEYS[k]) end
local held = kept_in > 0 and call('HLEN', buffer) or 0
local pending, hits = held, kept_in > 0 and tonumber(call('HGET', meta, 'hits')) or 0
local is_near_full = held + triples * kept_in > max
-- what can be refused as a whole is refused here; below a triple can only fail by itself
if caller == '' then call('ZADD', names, 'XX', '0', '') else call('HSET', KEYS[1], caller, n) end
local reply, refused, opened, keys, fields, sums = { 'OK', 0 }, {}, {}, {}, {}, {}
for t = 1, triples do
  local name, text, at = ARGV[2 + 3 * t], ARGV[3 + 3 * t], ARGV[4 + 3 * t]
  local amount, at_ms, refusal, targets = tonumber(text) or 0, now_ms, nil, of_now
  if at ~= '' then at_ms = at:find('^%d+$') and #at <= 15 and tonumber(at) or math.huge end
  if at_ms < now_ms and not has_ended then targets = targets_at(at_ms) end
  if not targets[1] or at_ms > now_ms + 60000 then refusal = 'BADTIME' end
  if has_ended then refusal = 'NOCALENDAR' end
  if amount < 1 then refusal = 'RANGE' end
  if name == '' or #name > 200 then refusal = 'BADID' end
  local fresh = 0
  for i = 1, is_near_full and not refusal and #targets or 0 do
    local prefix = targets[i].prefix
    if prefix and call('HEXISTS', buffer, prefix .. name) == 0 then fresh = fresh + 1 end
  end
  if fresh > 0 and pending + fresh > max then refusal = 'FULL' end
  local added, opens = 0, false
  while not refusal and added < #targets do
    local i = added + 1
    local target = targets[i]
    local key = target.prefix and buffer or KEYS[8 + (t - 1) * a_triple + target.w]
    local field = target.field or target.prefix .. name
    local sum = pcall('HINCRBY', key, field, text)
    if type(sum) == 'table' then
      refusal = sum.err:find('WRONGTYPE') and 'WRONGTYPE' or 'RANGE'
    else
      keys[i], fields[i], sums[i] = key, field, sum
      added, opens = i, opens or sum == amount
    end
  end
  for i = 1, (refusal or opens) and added or 0 do
    local key, field = keys[i], fields[i]
    if refusal then
      if call('HINCRBY', key, field, '-' .. text) == 0 then call('HDEL', key, field) end
    elseif sums[i] == amount and targets[i].prefix then
      pending = pending + 1
    elseif sums[i] == amount then
      opened[#opened + 1] = { key = key, window = targets[i].window, name = name }
    end
  end
  reply[t + 2] = refusal or 1
  if refusal then refused[#refused + 1] = t .. ':' .. refusal end
end
if refused[1] and caller ~= '' then
  call('HSET', KEYS[1], caller, n .. ' ' .. table.concat(refused, ' '))
end

local counted = kept_in > 0 and triples - #refused or 0
if counted > 0 then
  reply[2] = call('HINCRBY', meta, 'hits', counted)
  if hits == 0 then
    call('HSET', meta, 'first_at', format('%.0f', now_ms))
    -- of a partition that was never configured
    local incarnation = redis.sha1hex(meta .. caller .. n .. time[1] .. time[2]):sub(1, 16)
    call('HSETNX', meta, 'incarnation', incarnation) -- guard: Incarnation
  end
end
if kept_in > 0 and refused[1] then call('HINCRBY', meta, 'refused', #refused) end
if held < 64 and pending >= 64 then -- lua/README.md, "Small hashes"
  call('HSET', buffer, '', (' '):rep(256))
  call('HDEL', buffer, '')
end

local function prolong(key, until_ms)
  local ttl = until_ms - now_ms
  if call('PTTL', key) < ttl then call('PEXPIRE', key, format('%.0f', ttl)) end
end
for _, new in ipairs(opened) do
  local key, window = new.key, new.window
  local reach, length = window.reach, window.longest
  local gone = window.start - reach + length -- the window's first slice,
  gone = gone - length -- guard: Trim, and the one before it
  local lives_s = length
  lives_s = lives_s + reach -- guard: Expiry
  local expires_ms = math.min((window.start + lives_s) * 1000, 1e16)
  call('HDEL', key, format('%.0f', gone))
  local is_long = call('HLEN', key) > window.size
  for _, field in ipairs(is_long and call('HKEYS', key) or {}) do
    local start = tonumber(field) or math.huge
    local is_gone = start <= gone or start > window.start
    -- what lies ahead, since the clock stepped back, stays; so does what is not a time
    if start > window.start then is_gone = false end -- guard: Ahead
    if is_gone then call('HDEL', key, field) end
  end
  prolong(key, expires_ms)
  if window == longest then
    call('ZADD', names, '0', new.name)
    call('ZADD', idle, 'GT', format('%.0f', expires_ms), new.name)
    local over = call('ZRANGEBYSCORE', idle, '-inf', format('%.0f', now_ms), 'LIMIT', '0', '16')
    call('ZREM', names, '', unpack(over))
    call('ZREM', idle, '', unpack(over))
    prolong(names, expires_ms)
    prolong(idle, expires_ms)
  end
end
return reply
