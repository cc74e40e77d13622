-- cached_claim, revision 1
-- Claims what is to be saved, and hands out what may be written to the database by now.
--
-- KEYS
--   1 values        hash      id -> value; a counter is there while it has one
--   2 rows          hash      id -> "BASE SAVED LINEAGE N USED [CLAIM AT]", or "ticket HEX16" before it is seeded
--   3 agenda        zset      id -> ms: when something is next to be done about it
-- ARGV
--   1 settle_ms     integer   how long after it was made a claim counts as durable
--   2 lease_ms      integer   for how long others are to leave alone what is handed out
--   3 retain_ms     integer   a counter that is saved may be deleted when it was not changed for so long
--   4 now_ms        integer   "" for the server's clock; anything else is for tests
--   5 id            id        1 to 255 bytes; then the next one
-- REPLIES
--   {"OK", {word, ...}...}    for each id SAVE, base, saved, value, version, fresh: write this value and version where
--                             the row has that base ("-" for no row) and was saved in that version ("-" for none);
--                             or WAIT, ms, fresh: it is claimed, and durable in so many ms; or CLEAN, ms: nothing to
--                             save, and it may be deleted in so many ms (also a ticket that ends then); or GONE:
--                             nothing is known of it, and it was taken off the agenda; or BAD, why: its value or row
--                             has another shape, somebody wrote there. fresh is 1 where this call claimed it, else 0
-- ERRORS
--   BADARG                    an argument is missing or wrong; nothing done
--   BADKEY                    a key is misspelt or holds another type; nothing done
-- REPEAT  safe: what is claimed stays claimed
-- SINCE   0.1.0

-- what an error quotes is short and ASCII: some clients end the connection over other bytes
local function shown(text) return (text:sub(1, 200):gsub('[^ -~]', '?')) end

local function bad_key(...)
  if #KEYS ~= select('#', ...) then
    return redis.error_reply('BADKEY ' .. #KEYS .. ' keys, expected ' .. select('#', ...))
  end
  local tag, namespace, family, number = KEYS[1]:match('^(cf1:{([a-z0-9_.%-]+)/([a-z0-9_.%-]+)/(%d+)}:)')
  local good = tag and #namespace <= 64 and #family <= 64 and (number == '0' or number:byte() ~= 48)
  for i = 1, #KEYS do
    local kind = select(i, ...)
    if not good or KEYS[i] ~= tag .. kind then
      return redis.error_reply('BADKEY ' .. i .. ' of ' .. #KEYS .. ' is ' .. shown(KEYS[i]) .. ', expected '
        .. 'cf1:{NAMESPACE/FAMILY/PARTITION}:' .. kind .. ' with names of [a-z0-9_.-]{1,64}')
    end
  end
end

local function bad_count(name, text)
  if (text ~= '0' and not text:find('^[1-9]%d*$')) or #text > 15 then
    return redis.error_reply('BADARG ' .. name .. ' is ' .. shown(text) .. ', expected an integer of up to 15 digits')
  end
end

local function ask(command, key, ...)
  local reply = redis.pcall(command, key, ...)
  if type(reply) == 'table' and reply.err then
    return nil, redis.error_reply('BADKEY ' .. key .. ' cannot be read: ' .. reply.err)
  end
  return reply
end

-- Lua passes on only so many arguments at once
local function part(list, from) return unpack(list, from, math.min(from + 999, #list)) end

local function ask_all(key, ids)
  local found, wrong = ask('HMGET', key, part(ids, 1))
  for from = 1001, wrong and 0 or #ids, 1000 do
    for i, answer in ipairs(redis.call('HMGET', key, part(ids, from))) do found[from + i - 1] = answer end
  end
  return found, wrong
end

-- no row in the database is the same as a row of 0
local function is_clean(value, row)
  return row:find(value .. ' ', 1, true) == 1 or (value == '0' and row:find('- ', 1, true) == 1)
end

-- "BASE SAVED LINEAGE N USED [CLAIM AT]"; nothing where it has another shape
local function parsed(row)
  local base, saved, lineage, n, used, rest = (row or ''):match('^([-%d]%d*) ([-=:%x]+) (%x+) (%d+) (%d+)(.*)$')
  local claim, at = (rest or ''):match('^ (%-?%d+) (%d+)$')
  if rest ~= '' and not claim then return nil end
  return { base = base, saved = saved, lineage = lineage, n = n, used = used, claim = claim, at = at }
end

local function unparsed(row)
  local fields = { row.base, row.saved, row.lineage, row.n, row.used, row.claim, row.at }
  return table.concat(fields, ' ')
end

local wrong = bad_key('values', 'rows', 'agenda')
if wrong then return wrong end
if #ARGV < 5 then return redis.error_reply('BADARG ' .. #ARGV .. ' arguments, expected 4 and then ids') end
wrong = bad_count('settle_ms', ARGV[1]) or bad_count('lease_ms', ARGV[2]) or bad_count('retain_ms', ARGV[3])
  or (ARGV[4] ~= '' and bad_count('now_ms', ARGV[4]))
if wrong then return wrong end
local ids = {}
for i = 5, #ARGV do
  if ARGV[i] == '' or #ARGV[i] > 255 then
    return redis.error_reply('BADARG id ' .. i - 4 .. ' has ' .. #ARGV[i] .. ' bytes, expected 1 to 255')
  end
  ids[i - 4] = ARGV[i]
end

local clock = redis.call('TIME')
local now = ARGV[4] ~= '' and tonumber(ARGV[4]) or clock[1] * 1000 + math.floor(clock[2] / 1000)
local settle_ms, lease_ms, retain_ms = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local agenda, values, rows, _ = KEYS[3]
values, wrong = ask_all(KEYS[1], ids)
if wrong then return wrong end
rows, wrong = ask_all(KEYS[2], ids)
if wrong then return wrong end
_, wrong = ask('ZCARD', agenda)
if wrong then return wrong end

local now_ms = string.format('%.0f', now)
local plans, new_rows, gone = {}, {}, {}
local function schedule(id, at) plans[#plans + 1], plans[#plans + 2] = string.format('%.0f', at), id end
local function keep(id, row) new_rows[#new_rows + 1], new_rows[#new_rows + 2] = id, unparsed(row) end

local function without_value(id, row)
  if not row then
    gone[#gone + 1] = id
    return { 'GONE' }
  end
  -- a row without a value is what a crash left of a seed or a deletion, and waits for nothing
  local ends = row:find('^ticket ') and tonumber(redis.call('ZSCORE', agenda, id) or nil) or now
  -- one that ends later than anything does is from before the clock stepped back
  if ends > now + retain_ms then
    ends = now + retain_ms
    schedule(id, ends)
  end
  return { 'CLEAN', math.max(0, ends - now) }
end

local function clean(id, row)
  local at = tonumber(redis.call('ZSCORE', agenda, id) or nil)
  -- on the agenda before its stay ends: it was changed, and changed back; or the clock stepped back
  if tonumber(row.used) > now or (at and at <= now and at < row.used + retain_ms) then
    row.used = now_ms
    keep(id, row)
  end
  local ends = row.used + retain_ms
  if ends > now then schedule(id, ends) end
  return { 'CLEAN', math.max(0, ends - now) }
end

local function claimed(id, row, fresh)
  -- a clock that stepped back cannot tell how long ago the claim was made
  local is_ahead = tonumber(row.at) > now
  if is_ahead then row.at = now_ms end
  if is_ahead or fresh == 1 then keep(id, row) end
  local left = row.at + settle_ms - now
  if left > 0 then
    schedule(id, now + left)
    return { 'WAIT', left, fresh }
  end
  schedule(id, now + lease_ms)
  return { 'SAVE', row.base, row.saved, row.claim, row.lineage .. ':' .. row.n, fresh }
end

local reply = { 'OK' }
for i, id in ipairs(ids) do
  local value, row = values[i], parsed(rows[i])
  local answer
  if not value then
    answer = without_value(id, rows[i])
  elseif not row or not value:find('^%-?%d+$') then
    schedule(id, now + math.max(lease_ms, 1000))
    answer = { 'BAD', rows[i] and 'the value or the row has another shape' or 'a value without a row' }
  elseif row.claim then
    answer = claimed(id, row, 0)
  elseif is_clean(value, rows[i]) then
    answer = clean(id, row)
  else
    if row.saved == '=' then row.saved = row.lineage .. ':' .. row.n end
    row.n = string.format('%.0f', row.n + 1)
    row.claim, row.at, row.used = value, now_ms, now_ms
    answer = claimed(id, row, 1)
  end
  reply[i + 1] = answer
end

-- deletes nothing: where memory is full a script may go on once it has written, and draining must work there
redis.call('HDEL', KEYS[2], '')
for from = 1, #new_rows, 1000 do redis.call('HSET', KEYS[2], part(new_rows, from)) end
for from = 1, #plans, 1000 do redis.call('ZADD', agenda, part(plans, from)) end
for from = 1, #gone, 1000 do redis.call('ZREM', agenda, part(gone, from)) end
return reply
