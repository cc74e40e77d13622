-- series_add, revision 1
-- Counts into the current slice of every precision.
--
-- KEYS
--   1 calls         hash      of the caller's home partition: caller -> "N [INDEX:WORD ...]", its
--                             last call and the pairs refused in it; =now, =before
--   2 calls_before  hash      the same of the epoch before
--   3 open          hash      kept id -> count of a slice that is not over
--   4 schedule      zset      kept id -> ms: when its slice is over; every id in open is on it
--   5 names         zset      name -> 0: those with anything in a window
--   6 idle          zset      name -> ms: when the last slice of it has left every window
--   7 series:LABEL:NAME...  hash  start in seconds -> count; for each pair one a precision
-- ARGV
--   1 caller        string    random, no "=" in front; one call in flight; "" gives up the fence
--   2 n             integer   number of the call, higher than the caller's last, 1 to 2^53
--   3 epoch         string    as family_epoch returned it
--   4 now_ms        integer   "" for the server's clock; anything else is for tests
--   5 precisions    integer   how many of them follow, 1 to 16
--   6 precision     words     "LABEL SLICE SLICES KEEP"; SLICE: seconds, or "START-END", the
--                             calendar's current one; KEEP: the prefix of kept ids, "*" for START,
--                             or "-"
--   7 name, n       pairs     name: 1 to 200 bytes, a kept id 255; n: 1 or more; 1 to 100 pairs
-- REPLIES
--   {"OK", word...}  for each pair 1, or why it counts nowhere: RANGE (n or a sum is beyond i64),
--                    BADID (name or kept id is too long, or empty), WRONGTYPE (a foreign key)
--   {"DUP", refused}  executed before, nothing done now; "1:RANGE ..." are the pairs refused then
--   {"PASSED"}  the caller made a later call: nothing done now, the outcome is unknown
--   {"EXPIRED"}  unknown epoch: nothing done now, the outcome of earlier arrivals is unknown
--   {"OUTSIDE", now_ms}  a calendar's slice is another one at this time: nothing done
-- ERRORS
--   BADARG  the arguments do not fit the keys, or a precision is wrong; nothing done
-- REPEAT  safe with a caller, from any process
-- SINCE   0.1.0

local own_kind, caller, n, epoch = 'series', ARGV[1], ARGV[2], ARGV[3]
local own_settings = {}
local call, pcall, format = redis.call, redis.pcall, string.format
local precisions = tonumber(ARGV[5]) or 0
local pairs_given = (#ARGV - 5 - precisions) / 2
local fits = precisions >= 1 and precisions <= 16 and pairs_given >= 1 and pairs_given <= 100
if not fits or pairs_given % 1 ~= 0 or #KEYS ~= 6 + pairs_given * precisions then
  return redis.error_reply('BADARG expected 1 to 16 precisions, 1 to 100 pairs, and their windows')
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

local open, schedule, names, idle = KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local time = call('TIME')
local now_ms = tonumber(ARGV[4]) or time[1] * 1000 + math.floor(time[2] / 1000)
-- what each pair counts in: the current slice of each window, and that slice's kept ids
local targets, longest, limit = {}, nil, 200
for p = 1, precisions do
  local first, last_s, size, keep = ARGV[5 + p]:match('^%w+ ([1-9]%d*)%-?(%d*) ([1-9]%d*) (%S+)$')
  if not first then
    return redis.error_reply('BADARG expected precisions like "LABEL SLICE SLICES KEEP"')
  end
  local length = tonumber(first)
  local start = math.floor(now_ms / 1000 / length) * length
  local over = start + length
  if last_s ~= '' then
    start, over = tonumber(first), tonumber(last_s)
    length = math.ceil((over - start) * 6 / 5) -- no day or month is longer
  end
  local is_current = now_ms >= start * 1000 and now_ms < over * 1000
  if not is_current then return { 'OUTSIDE', format('%.0f', now_ms) } end -- guard: Outside
  local slice = { start = start, field = format('%.0f', start), size = tonumber(size) }
  slice.window, slice.reach = 6 - precisions + p, size * length
  slice.gone = start - slice.reach + length -- the window's first slice,
  slice.gone = slice.gone - length -- guard: Trim, and the one before it
  local lives_s = length
  lives_s = lives_s + slice.reach -- guard: Expiry
  slice.expires_ms = math.min((start + lives_s) * 1000, 1e16)
  targets[#targets + 1] = slice
  if not longest or slice.reach > longest.reach then longest = slice end
  if keep ~= '-' then
    local prefix = keep:gsub('%*', slice.field)
    targets[#targets + 1] = { prefix = prefix, over_ms = over * 1000 }
    limit = math.min(limit, 255 - #prefix)
  end
end

for k = 4, 6 do call('ZCARD', KEYS[k]) end
-- what can be refused as a whole is refused here; below a pair can only fail by itself
if caller == '' then call('ZADD', names, 'XX', '0', '') else call('HSET', KEYS[1], caller, n) end
local reply, refused, opened, keys, fields, sums = { 'OK' }, {}, {}, {}, {}, {}
for pair = 1, pairs_given do
  local name, text = ARGV[4 + precisions + 2 * pair], ARGV[5 + precisions + 2 * pair]
  local amount, refusal = tonumber(text) or 0, nil
  if amount < 1 then refusal = 'RANGE' end
  if name == '' or #name > limit then refusal = 'BADID' end
  local added, opens = 0, false
  while not refusal and added < #targets do
    local t = added + 1
    local target = targets[t]
    local key = target.prefix and open or KEYS[target.window + pair * precisions]
    local field = target.field or target.prefix .. name
    local sum = pcall('HINCRBY', key, field, text)
    if type(sum) == 'table' then
      refusal = sum.err:find('WRONGTYPE') and 'WRONGTYPE' or 'RANGE'
    else
      keys[t], fields[t], sums[t] = key, field, sum
      added, opens = t, opens or sum == amount
    end
  end
  for t = 1, (refusal or opens) and added or 0 do
    local key, field = keys[t], fields[t]
    if refusal then
      if call('HINCRBY', key, field, '-' .. text) == 0 then call('HDEL', key, field) end
    elseif sums[t] == amount then
      opened[#opened + 1] = { key = key, field = field, target = targets[t], name = name }
    end
  end
  reply[pair + 1] = refusal or 1
  if refusal then refused[#refused + 1] = pair .. ':' .. refusal end
end
if refused[1] and caller ~= '' then
  call('HSET', KEYS[1], caller, n .. ' ' .. table.concat(refused, ' '))
end
if not opened[1] then return reply end

local function prolong(key, until_ms)
  local ttl = until_ms - now_ms
  if call('PTTL', key) < ttl then call('PEXPIRE', key, format('%.0f', ttl)) end
end
local function open_slice(window, slice, name)
  call('HDEL', window, format('%.0f', slice.gone))
  local is_long = call('HLEN', window) > slice.size
  for _, field in ipairs(is_long and call('HKEYS', window) or {}) do
    local start = tonumber(field) or math.huge
    local is_gone = start <= slice.gone or start > slice.start
    -- what lies ahead, since the clock stepped back, stays; so does what is not a time
    if start > slice.start then is_gone = false end -- guard: Ahead
    if is_gone then call('HDEL', window, field) end
  end
  prolong(window, slice.expires_ms)
  if slice ~= longest then return end
  call('ZADD', names, '0', name)
  call('ZADD', idle, 'GT', format('%.0f', slice.expires_ms), name)
  local over = call('ZRANGEBYSCORE', idle, '-inf', format('%.0f', now_ms), 'LIMIT', '0', '16')
  call('ZREM', names, '', unpack(over))
  call('ZREM', idle, '', unpack(over))
  prolong(names, slice.expires_ms)
  prolong(idle, slice.expires_ms)
end
local new_ids = 0
for _, new in ipairs(opened) do
  if new.target.prefix then
    call('ZADD', schedule, format('%.0f', new.target.over_ms), new.field)
    new_ids = new_ids + 1
  else
    open_slice(new.key, new.target, new.name)
  end
end
local size = new_ids > 0 and call('HLEN', open) or 0
if size >= 64 and size - new_ids < 64 then -- lua/README.md, "Small hashes"
  call('HSET', open, '', (' '):rep(256))
  call('HDEL', open, '')
end
return reply
