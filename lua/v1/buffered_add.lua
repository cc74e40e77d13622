-- buffered_add, revision 1
-- Counts hits: adds each delta to what its id has pending.
--
-- KEYS
--   1 calls         hash      of the caller's home partition: caller -> "N [INDEX:WORD ...]", its last call in this
--                             epoch and what was refused in it; =now, =before, =max_pending
--   2 calls_before  hash      the same of the epoch before
--   3 buffer        hash      id -> pending delta
--   4 meta          hash      hits, first_at, incarnation; then both keys of the node's next partition
-- ARGV
--   1 caller        string    random, not beginning with "="; it has one call in flight; "" gives up the fence
--   2 n             integer   number of the call, higher than the caller's last, 1 to 2^53
--   3 epoch         string    as family_epoch told it
--   4 now_ms        integer   "" for the server's clock; anything else is for tests
--   5 hits, pairs, (id, delta)...  groups  for each partition how many hits its pairs stand for, how many pairs,
--                             and the pairs; id: 1 to 255 bytes, UTF-8; delta: an i64; 1000 pairs in all at most
-- REPLIES
--   {"OK", (total, pending...)...}  counted; for each partition its hits since the last rotation, then for each pair
--                             what its id has pending now, an integer, or a string where it is beyond 2^53; or a word,
--                             and that pair was not counted: RANGE (delta or sum is beyond i64), FULL (the buffer holds
--                             max_pending other ids), BADID (empty, or too long), WRONGTYPE (buffer or meta is no hash,
--                             or hits are not an integer)
--   {"DUP", refused}          this call was executed before, nothing done now; "3:FULL 7:RANGE" are the pairs that were
--                             refused then, counted from 1 through all partitions
--   {"PASSED"}                the caller has made a later call: nothing done now, and not known what was done before
--   {"EXPIRED"}               the epoch is not known (any more): nothing done now, and not known what was done before
-- ERRORS
--   BADARG                    the arguments do not fit the keys, or the family is of another kind; nothing done
-- REPEAT  safe with a caller, from any process
-- SINCE   0.1.0

-- a local is found faster than a global
local call, pcall, type, KEYS, ARGV = redis.call, redis.pcall, type, KEYS, ARGV
local own_kind, caller, n, epoch, arg = 'buffered', ARGV[1], ARGV[2], ARGV[3], 5
for _ = 3, #KEYS, 2 do arg = arg + 2 + 2 * (ARGV[arg + 1] or math.huge) end
if #KEYS < 4 or #KEYS % 2 == 1 or arg ~= #ARGV + 1 or #ARGV > 2002 + #KEYS then
  return redis.error_reply('BADARG expected for every two keys from the 3rd on: hits, pairs, and so many pairs')
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

-- a value that is not a number ends the script here, before the first write; a sum is faster than tonumber
local max = (max_pending or 1000000) + 0
arg = 5
-- what can be refused as a whole (OOM, READONLY, MISCONF) is refused here; below a pair can only fail by itself
if caller ~= '' then redis.call('HSET', KEYS[1], caller, n) else redis.call('HINCRBY', KEYS[4], 'hits', 0) end
-- with room for a call of one pair, since a table that grows is slow
local reply, at, refused = { 'OK', nil, nil }, 1, nil
for k = 3, #KEYS, 2 do
  local buffer, meta, hits, done = KEYS[k], KEYS[k + 1], ARGV[arg], arg + 1 + 2 * ARGV[arg + 1]
  local total = pcall('HINCRBY', meta, 'hits', hits)
  local broken, held, longer = type(total) == 'table', nil, nil
  if broken then
    total = 0
  else
    local earlier = total - hits
    if earlier == 0 then
      local time = ARGV[4] ~= '' and { '0', ARGV[4] .. '000' } or call('TIME')
      call('HSET', meta, 'first_at', string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000)))
      -- of a partition that was never configured
      call('HSETNX', meta, 'incarnation', redis.sha1hex(meta .. caller .. n .. time[1] .. time[2]):sub(1, 16))
    end
    -- up to 512 fields Redis walks a hash as a list; a field longer than any id makes it a table
    longer = total >= 64 and earlier < 64 and string.rep(' ', 256)
    if longer then pcall('HSET', buffer, longer, '0') end
    -- as many ids as hits at most, so most calls need not ask
    held = total > max and pcall('HLEN', buffer)
    broken = type(held) == 'table'
  end
  at = at + 1
  reply[at] = total
  for i = arg + 2, done, 2 do
    local id, sum, word = ARGV[i], nil, nil
    if broken then
      word = 'WRONGTYPE'
    elseif id == '' or #id > 255 then
      word = 'BADID'
    elseif held and call('HLEN', buffer) >= max + (longer and 1 or 0) and call('HEXISTS', buffer, id) == 0 then
      word = 'FULL'
    else
      sum = pcall('HINCRBY', buffer, id, ARGV[i + 1])
      if type(sum) == 'table' then
        word = sum.err:find('WRONGTYPE') and 'WRONGTYPE' or 'RANGE'
      elseif sum >= 2^53 or sum <= -2^53 then
        sum = call('HGET', buffer, id)
      end
    end
    at = at + 1
    reply[at] = word or sum
    if word then
      refused = refused or {}
      refused[#refused + 1] = at - (k + 1) / 2 .. ':' .. word
    end
  end
  if longer then pcall('HDEL', buffer, longer) end
  arg = done + 1
end
if refused and caller ~= '' then redis.call('HSET', KEYS[1], caller, n .. ' ' .. table.concat(refused, ' ')) end
return reply
