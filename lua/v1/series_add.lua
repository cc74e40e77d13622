-- series_add, revision 1
-- Counts into the current slice of every precision.
--
-- KEYS
--   1 calls         hash      of the caller's home partition: caller -> "N [INDEX:WORD ...]", its last call in this
--                             epoch and the pairs refused in it; =now, =before
--   2 calls_before  hash      the same of the epoch before
--   3 open          hash      kept id -> count of a slice that is not over, to be kept in the database
--   4 schedule      zset      kept id -> ms: when its slice is over; every id in open is on it
--   5 names         zset      name -> 0: those with anything in a window
--   6 idle          zset      name -> ms: when the last slice of it has left every window
--   7 series:LABEL:NAME...  hash  slice's start in Unix seconds -> count; for each pair one for each precision
-- ARGV
--   1 caller        string    random, not beginning with "="; it has one call in flight; "" gives up the fence
--   2 n             integer   number of the call, higher than the caller's last, 1 to 2^53
--   3 epoch         string    as family_epoch told it
--   4 now_ms        integer   "" for the server's clock; anything else is for tests
--   5 precisions    integer   how many of them follow, 1 to 16
--   6 precision     words     "LABEL SLICE SLICES KEEP". SLICE: seconds, or "START-END", which the caller takes for the
--                             calendar's current one; KEEP: what kept ids begin with, "*" being its start, or "-"
--   7 name, n       pairs     name: 1 to 200 bytes, a kept id 255 at most; n: an i64 of 1 or more; 1 to 100 pairs
-- REPLIES
--   {"OK", word...}           for each pair 1, or why it counts nowhere: RANGE (n or a sum is beyond i64), BADID (name
--                             or kept id is too long, or empty), WRONGTYPE (a foreign key)
--   {"DUP", refused}          executed before, nothing done now; "1:RANGE ..." are the pairs refused then
--   {"PASSED"}                the caller has made a later call: nothing done now, and not known what was done before
--   {"EXPIRED"}               the epoch is not known (any more): nothing done now, and not known what was done before
--   {"OUTSIDE", now_ms}       by the server's clock, a string, the slice of a calendar is another one; nothing done
-- ERRORS
--   BADARG                    the arguments do not fit the keys, or a precision is none; nothing done
-- REPEAT  safe with a caller, from any process
-- SINCE   0.1.0

local own_kind, caller, n, epoch, precisions = 'series', ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[5]) or 0
local call, pcall, format, given = redis.call, redis.pcall, string.format, (#ARGV - 5 - precisions) / 2
local fit = precisions <= 16 and given <= 100 and given % 1 == 0 and #KEYS == 6 + given * precisions and #KEYS > 6
if not fit then return redis.error_reply('BADARG expected 1 to 16 precisions, 1 to 100 pairs, and their windows') end
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
local names, idle, time = KEYS[5], KEYS[6], call('TIME')
local ms = tonumber(ARGV[4]) or time[1] * 1000 + math.floor(time[2] / 1000)
local targets, limit, longest, reach, reply, refused = {}, 200, nil, 0, { 'OK' }, {}
for k = 1, precisions do
  local slice, finish, slices, keep = ARGV[5 + k]:match('^%w+ ([1-9]%d*)%-?(%d*) ([1-9]%d*) (%S+)$')
  if not slice then return redis.error_reply('BADARG expected precisions like "LABEL SLICE SLICES KEEP"') end
  local length = finish == '' and tonumber(slice) or math.ceil((finish - slice) * 6 / 5) -- no day or month is longer
  local start = finish == '' and math.floor(ms / 1000 / length) * length or tonumber(slice)
  local over = tonumber(finish) or start + length
  if not (ms >= start * 1000 and ms < over * 1000) then return { 'OUTSIDE', format('%.0f', ms) } end
  targets[#targets + 1] = { window = 6 - precisions + k, field = format('%.0f', start), slices = tonumber(slices),
    oldest = start - slices * length, gone_ms = math.min((start + (slices + 1) * length) * 1000, 1e16) }
  if slices * length > reach then longest, reach = targets[#targets], slices * length end
  keep = keep:gsub('%*', targets[#targets].field)
  if keep ~= '-' then targets[#targets + 1] = { hash = KEYS[3], keep = keep, over_ms = over * 1000 } end
  limit = math.min(limit, 255 - #keep)
end
for k = 4, 6 do call('ZCARD', KEYS[k]) end
-- what can be refused as a whole (OOM, READONLY, MISCONF) is refused here; below a pair can only fail by itself
if caller ~= '' then redis.call('HSET', KEYS[1], caller, n) else redis.call('ZADD', names, 'XX', '0', '') end
for i = 6 + precisions, #ARGV, 2 do
  local name, text, amount, pair = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 1]) or 0, (i - precisions) / 2 - 2
  local word, opens = (name == '' or #name > limit) and 'BADID' or amount < 1 and 'RANGE' or 1, false
  for t = 1, #targets do
    local to = targets[t]
    if to.keep then to.field = to.keep .. name else to.hash = KEYS[to.window + pair * precisions] end
    local sum = word == 1 and pcall('HINCRBY', to.hash, to.field, text)
    if type(sum) == 'table' then word, sum = sum.err:find('WRONGTYPE') and 'WRONGTYPE' or 'RANGE', false end
    to.sum, opens = sum, opens or sum == amount
  end
  reply[pair + 1], refused[#refused + 1] = word, word ~= 1 and pair .. ':' .. word or nil
  for _, to in ipairs((opens or word ~= 1) and targets or {}) do
    if word ~= 1 and to.sum then
      if call('HINCRBY', to.hash, to.field, '-' .. text) == 0 then call('HDEL', to.hash, to.field) end
    elseif to.sum == amount and to.keep then
      call('ZADD', KEYS[4], format('%.0f', to.over_ms), to.field)
      local longer = math.floor(call('HLEN', to.hash) / 16) == 4 and string.rep(' ', 256) -- a table, as in buffered_add
      if longer and call('HSET', to.hash, longer, '0') then call('HDEL', to.hash, longer) end
    elseif to.sum == amount then
      call('HDEL', to.hash, format('%.0f', to.oldest))
      for _, start in ipairs(call('HLEN', to.hash) > to.slices and call('HKEYS', to.hash) or {}) do
        -- what lies ahead of the clock, since it stepped back, stays; so does what is no time
        if (tonumber(start) or math.huge) <= to.oldest then call('HDEL', to.hash, start) end
      end
      if to == longest then
        call('ZADD', names, '0', name)
        call('ZADD', idle, 'GT', format('%.0f', to.gone_ms), name)
        local gone = call('ZRANGEBYSCORE', idle, '-inf', format('%.0f', ms), 'LIMIT', '0', '16')
        call('ZREM', names, '', unpack(gone))
        call('ZREM', idle, '', unpack(gone))
      end
      for _, one in ipairs(to == longest and { to.hash, names, idle } or { to.hash }) do
        if call('PTTL', one) < to.gone_ms - ms then call('PEXPIRE', one, format('%.0f', to.gone_ms - ms)) end
      end
    end
  end
end
if refused[1] and caller ~= '' then redis.call('HSET', KEYS[1], caller, n .. ' ' .. table.concat(refused, ' ')) end
return reply
