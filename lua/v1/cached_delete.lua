-- cached_delete, revision 1
-- Deletes counters that are saved and have not been used for long.
--
-- KEYS
--   1 values        hash      id -> value; a counter is there while it has one
--   2 rows          hash      id -> "BASE SAVED LINEAGE N USED [CLAIM AT]", or "ticket HEX16" before it is seeded
--   3 agenda        zset      id -> ms: when something is next to be done about it
-- ARGV
--   1 retain_ms     integer   a counter that is saved may be deleted when it was not changed for so long
--   2 now_ms        integer   "" for the server's clock; anything else is for tests
--   3 id            id        1 to 255 bytes; then the next one
-- REPLIES
--   {"OK", word...}           for each id DELETED, also a ticket that ended; or KEPT:claimed, KEPT:dirty, KEPT:early
--                             (used lately, or a ticket that has not ended), KEPT:bad (its value or row has another
--                             shape, somebody wrote there); or GONE: nothing is known of it, and it was taken off the
--                             agenda
-- ERRORS
--   BADARG                    an argument is missing or wrong; nothing done
--   BADKEY                    a key is misspelt or holds another type; nothing done
-- REPEAT  safe
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

local wrong = bad_key('values', 'rows', 'agenda')
if wrong then return wrong end
if #ARGV < 3 then return redis.error_reply('BADARG ' .. #ARGV .. ' arguments, expected 2 and then ids') end
wrong = bad_count('retain_ms', ARGV[1]) or (ARGV[2] ~= '' and bad_count('now_ms', ARGV[2]))
if wrong then return wrong end
local retain_ms, ids = tonumber(ARGV[1]), {}
for i = 3, #ARGV do
  if ARGV[i] == '' or #ARGV[i] > 255 then
    return redis.error_reply('BADARG id ' .. i - 2 .. ' has ' .. #ARGV[i] .. ' bytes, expected 1 to 255')
  end
  ids[i - 2] = ARGV[i]
end

local clock = redis.call('TIME')
local now = ARGV[2] ~= '' and tonumber(ARGV[2]) or clock[1] * 1000 + math.floor(clock[2] / 1000)
local agenda, values, rows, _ = KEYS[3]
values, wrong = ask_all(KEYS[1], ids)
if wrong then return wrong end
rows, wrong = ask_all(KEYS[2], ids)
if wrong then return wrong end
_, wrong = ask('ZCARD', agenda)
if wrong then return wrong end

-- why a counter has to stay, or nothing
local function kept(id, value, text)
  local row = parsed(text)
  if not value then
    -- a row without a value is what a crash left of a seed or a deletion, and goes
    local ends = text:find('^ticket ') and redis.call('ZSCORE', agenda, id)
    return ends and tonumber(ends) > now and 'KEPT:early'
  end
  if not row or not value:find('^%-?%d+$') then return 'KEPT:bad' end
  local unsaved = row.claim and 'KEPT:claimed' or not is_clean(value, text) and 'KEPT:dirty'
  return unsaved or row.used + retain_ms > now and 'KEPT:early'
end
local reply, gone, deleted = { 'OK' }, {}, {}
for i, id in ipairs(ids) do
  local word = 'GONE'
  if values[i] or rows[i] then word = kept(id, values[i], rows[i]) or 'DELETED' end
  if word == 'DELETED' then deleted[#deleted + 1] = id end
  if word == 'DELETED' or word == 'GONE' then gone[#gone + 1] = id end
  reply[i + 1] = word
end

-- in this order since a crash may keep the first of these writes only: the agenda knows of all that is there
for from = 1, #deleted, 1000 do redis.call('HDEL', KEYS[1], part(deleted, from)) end
for from = 1, #deleted, 1000 do redis.call('HDEL', KEYS[2], part(deleted, from)) end
for from = 1, #gone, 1000 do redis.call('ZREM', agenda, part(gone, from)) end
return reply
