-- cached_saved, revision 1
-- Marks counters as saved, if they are still claimed in that version.
--
-- KEYS
--   1 values        hash      id -> value; a counter is there while it has one
--   2 rows          hash      id -> "BASE SAVED LINEAGE N USED [CLAIM AT]", or "ticket HEX16" before it is seeded
--   3 agenda        zset      id -> ms: when something is next to be done about it
-- ARGV
--   1 save_after_ms  integer  a save is due so long after a change
--   2 retain_ms      integer  a counter that is saved may be deleted when it was not changed for so long
--   3 now_ms         integer  "" for the server's clock; anything else is for tests
--   4 id, version   pairs     id: 1 to 255 bytes; version: of the claim that is in the database now; one pair or more
-- REPLIES
--   {"OK", word...}           for each pair CLEAN or DIRTY: it is marked, and has nothing more to be saved, or was
--                             changed meanwhile; or STALE: not claimed in that version any more, nothing done
-- ERRORS
--   BADARG                    an argument is missing or wrong; nothing done
--   BADKEY                    a key is misspelt or holds another type; nothing done
-- REPEAT  safe: a repeat finds it STALE
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

local function is_random(text) return #text == 16 and not text:find('[^0-9a-f]') end

local function is_version(text)
  local lineage, n = text:match('^(%w+):([1-9]%d*)$')
  return lineage and is_random(lineage) and #n <= 15
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
if #ARGV < 5 or #ARGV % 2 == 0 then
  return redis.error_reply('BADARG ' .. #ARGV .. ' arguments, expected 3 and then pairs of id and version')
end
wrong = bad_count('save_after_ms', ARGV[1]) or bad_count('retain_ms', ARGV[2])
  or (ARGV[3] ~= '' and bad_count('now_ms', ARGV[3]))
if wrong then return wrong end
local save_after_ms, retain_ms, ids = tonumber(ARGV[1]), tonumber(ARGV[2]), {}
for i = 4, #ARGV, 2 do
  local id, version = ARGV[i], ARGV[i + 1]
  if id == '' or #id > 255 or not is_version(version) then
    return redis.error_reply('BADARG pair ' .. (i - 2) / 2 .. ' has an id of ' .. #id .. ' bytes and the version '
      .. shown(version) .. ', expected 1 to 255 bytes and LINEAGE:N')
  end
  ids[#ids + 1] = id
end

local clock = redis.call('TIME')
local now = ARGV[3] ~= '' and tonumber(ARGV[3]) or clock[1] * 1000 + math.floor(clock[2] / 1000)
local values, rows, _
values, wrong = ask_all(KEYS[1], ids)
if wrong then return wrong end
rows, wrong = ask_all(KEYS[2], ids)
if wrong then return wrong end
_, wrong = ask('ZCARD', KEYS[3])
if wrong then return wrong end

local reply, plans, new_rows = { 'OK' }, {}, {}
for i, id in ipairs(ids) do
  local value, version, row = values[i], ARGV[3 + 2 * i], parsed(rows[i])
  if value and row and row.claim and version == row.lineage .. ':' .. row.n then
    local is_same = value == row.claim
    local at = is_same and row.used + retain_ms or row.at + save_after_ms
    row.base, row.saved, row.claim, row.at = row.claim, '=', nil, nil
    new_rows[#new_rows + 1], new_rows[#new_rows + 2] = id, unparsed(row)
    plans[#plans + 1], plans[#plans + 2] = string.format('%.0f', math.max(now, at)), id
    reply[i + 1] = is_same and 'CLEAN' or 'DIRTY'
  else
    reply[i + 1] = 'STALE'
  end
end

-- deletes nothing: where memory is full a script may go on once it has written, and draining must work there
redis.call('HDEL', KEYS[2], '')
for from = 1, #new_rows, 1000 do redis.call('HSET', KEYS[2], part(new_rows, from)) end
for from = 1, #plans, 1000 do redis.call('ZADD', KEYS[3], part(plans, from)) end
return reply
