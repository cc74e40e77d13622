-- cached_incr, revision 1
-- Changes counters that are there, and returns each one's new value.
--
-- KEYS
--   1 calls         hash      of the caller's home partition: caller -> "N WORD ...", its last call in this epoch and
--                             the words of the reply to it; =now, =before, =save_after_ms
--   2 calls_before  hash      the same of the epoch before
--   3 values        hash      id -> value; a counter is there while it has one; "=VALUE" until it is changed
--   4 rows          hash      id -> "BASE SAVED LINEAGE N USED [CLAIM AT]", or "ticket HEX16" before it is seeded
--   5 schedule      zset      id -> ms: when something is to be done; then these three of the node's next partition
-- ARGV
--   1 caller        string    random name of the caller, which has one call in flight; "" gives up the fence
--   2 n             integer   number of the call, higher than the caller's last
--   3 epoch         string    as family_epoch told it
--   4 now_ms        integer   "" for the server's clock; anything else is for tests
--   5 ticket_ms     integer   how long a ticket is kept
--   6 min           integer   a change downwards must not end below it; smaller than 2^53 in size; "" for none
--   7 max           integer   a change upwards must not end above it; likewise
--   8 pairs, (id, change)...  list  for each partition how many pairs, and the pairs, 1000 in all at most; id: 1 to 255
--                             bytes; change: an i64 to add, or "=" and an i64 to set
-- REPLIES
--   {"OK", word...}           for each pair the new value, an integer, or a string where it is beyond 2^53; or why it
--                             was not changed: MISS:ticket, not there, seed it and come again; RANGE:value, sum or
--                             change no i64, or out of bounds; BADID, too long or empty; BADSTATE, no integer is stored
--   {"DUP", word...}          executed before, nothing done now; the same words as strings, or none after a later call
--   {"EXPIRED"}               the epoch is not known (any more): nothing done now, and not known what was done before
-- ERRORS
--   BADARG                    the arguments do not fit the keys; nothing done
-- REPEAT  safe, whoever repeats it, with a caller
-- SINCE   0.1.0

local call, tonumber, format, caller, n, epoch, arg = redis.call, tonumber, string.format, ARGV[1], ARGV[2], ARGV[3], 8
for _ = 3, #KEYS, 3 do arg = (tonumber(ARGV[arg]) or 0) > 0 and arg + 1 + 2 * ARGV[arg] or math.huge end
if #KEYS < 5 or #KEYS % 3 ~= 2 or arg ~= #ARGV + 1 or #ARGV > 2007 + #KEYS / 3 then
  return redis.error_reply('BADARG expected for every three keys from the 3rd on: pairs, and so many pairs')
end

local now, last, save_after = unpack(redis.call('HMGET', KEYS[1], '=now', caller, '=save_after_ms'))
if caller ~= '' and epoch ~= now and epoch ~= redis.call('HGET', KEYS[1], '=before') then return { 'EXPIRED' } end
last = last or epoch ~= now and redis.call('HGET', KEYS[2], caller)
local last_n = last and (tonumber(last) or tonumber(last:match('^%d+')))
local reply, words, writes, at, from, time = { 'OK' }, {}, {}, 0, 8, nil
if last_n and n - last_n <= 0 then
  for word in last:gmatch(n - last_n == 0 and ' (%S+)' or '^$') do words[#words + 1] = word end
  return { 'DUP', unpack(words) }
end
local low, high = ARGV[6] == '' and -math.huge or ARGV[6] + 0, ARGV[7] == '' and math.huge or ARGV[7] + 0
for k = 3, #KEYS, 3 do
  local count, due, rows, latest, size = ARGV[from] + 0, {}, {}, writes[KEYS[k]] or {}, 0
  -- made at their full size, since a table that grows is slow
  local ids, texts = { unpack(ARGV, from + 1, from + count) }, { unpack(ARGV, from + 1, from + 2 * count) }
  for i = 1, count do ids[i] = texts[2 * i - 1] end
  local values = call('HMGET', KEYS[k], unpack(ids))
  for i, id in ipairs(ids) do
    local was, change, text, small, delay = latest[id] or values[i], texts[2 * i], nil, nil, nil
    local delta, x = change == '1' and 1 or tonumber(change), tonumber(was or nil)
    time = time or not x and (ARGV[4] == '' and call('TIME') or { '0', ARGV[4] .. '000' })
    if was then
      local unchanged = not x and was:match('^=(.+)')
      if unchanged then was, x = unchanged, tonumber(unchanged) end
      local sum = x and (delta and x + delta or tonumber(change:match('^=(.+)')))
      if sum and x > -1e14 and x < 1e14 and sum > -1e14 and sum < 1e14 and sum % 1 == 0 then
        text = format('%d', sum)
      elseif x and x % 1 == 0 then
        -- Lua's numbers are exact below 2^53 only: larger ones are added by Redis, in a field that is no caller's
        call('HSET', KEYS[1], '', delta and was or '0')
        sum = redis.pcall('HINCRBY', KEYS[1], '', (change:gsub('^=', '')))
        text = type(sum) == 'number' and call('HGET', KEYS[1], '')
        call('HDEL', KEYS[1], '')
      end
      if not text or (delta or -1) < 0 and sum < low or (delta or 1) > 0 and sum > high then
        text = x and x % 1 == 0 and 'RANGE:' .. was or 'BADSTATE'
      else
        small, delay = sum > -2^53 and sum < 2^53 and sum, unchanged and (save_after or 2000)
        latest[id], texts[size + 1], texts[size + 2], size = text, id, text, size + 2
      end
    else
      local ticket = (call('HGET', KEYS[k + 1], id) or ''):match('^ticket (%x+)$')
      if not ticket and id ~= '' and #id < 256 then
        ticket = redis.sha1hex(table.concat({ caller, n, epoch, time[1], time[2] }, ' ')):sub(1, 16) -- never again
        delay, rows[#rows + 1], rows[#rows + 2] = ARGV[5], id, 'ticket ' .. ticket
      end
      text = ticket and 'MISS:' .. ticket or 'BADID'
    end
    if delay then due[#due + 1], due[#due + 2] = time[1] * 1000 + math.floor(time[2] / 1000) + delay, id end
    words[at + i], reply[at + i + 1] = text, small or text
  end
  if due[1] then call('ZCARD', KEYS[k + 2]) end
  writes[k], writes[KEYS[k]], at, from = { due, rows, texts, size }, latest, at + count, from + 1 + 2 * count
end

-- the first write is refused where Redis takes none, and types are known; in this order since a crash may keep a part
if caller ~= '' then call('HSET', KEYS[1], caller, n .. ' ' .. table.concat(words, ' ')) end
for k = 3, #KEYS, 3 do
  local due, rows, texts, size = unpack(writes[k])
  if due[1] then call('ZADD', KEYS[k + 2], 'LT', unpack(due)) end
  if rows[1] then call('HSET', KEYS[k + 1], unpack(rows)) end
  if size > 0 then call('HSET', KEYS[k], unpack(texts, 1, size)) end
end
return reply
