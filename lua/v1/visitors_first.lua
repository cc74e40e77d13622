-- visitors_first, revision 1
-- Counts each visitor of an id once: whoever is new to it adds 1 to what it has pending.
--
-- KEYS
--   1 calls         hash      of the caller's home partition: caller -> "N WORD...", its last call in this epoch and
--                             the outcome of each visitor; =now, =before, =max_pending
--   2 calls_before  hash      the same of the epoch before
--   3 buffer        hash      id -> pending delta
--   4 meta          hash      hits, first_at
--   5 seen:ID...    set       visitors of the id; then the key of the next id
-- ARGV
--   1 caller        string    random, not beginning with "="; it has one call in flight; "" gives up the fence
--   2 n             integer   number of the call, higher than the caller's last, 1 to 2^53
--   3 epoch         string    as family_epoch told it
--   4 now_ms        integer   "" for the server's clock; anything else is for tests
--   5 remember_ms   integer   an id's visitors are forgotten so long after the last new one; 1 or more
--   6 ids           integer   how many ids follow
--   7 id, count, visitor...  ids  id: 1 to 255 bytes, UTF-8; count: of its visitors that follow, 1 or more; visitor:
--                             bytes of any kind; 1000 visitors in all at most
-- REPLIES
--   {"OK", total, word...}    hits since the last rotation; for each visitor 1 where it is new to the id, 0 where it
--                             was there, or why it is not counted, nor noted: FULL (the buffer holds max_pending other
--                             ids), BADID (too long, or empty), RANGE (beyond i64), WRONGTYPE (a foreign key)
--   {"DUP", word...}          executed before, nothing done now; the same words
--   {"PASSED"}                the caller has made a later call: nothing done now, and not known what was done before
--   {"EXPIRED"}               the epoch is not known (any more): nothing done now, and not known what was done before
-- ERRORS
--   BADARG                    the arguments do not fit the keys, or the family is of another kind; nothing done
-- REPEAT  safe with a caller, from any process; a visitor counts once in any case
-- SINCE   0.1.0

local call, pcall, own_kind, caller, n, epoch = redis.call, redis.pcall, 'visitors', ARGV[1], ARGV[2], ARGV[3]
local buffer, meta, ids, at, reply, counted = KEYS[3], KEYS[4], #KEYS - 4, 7, { 'OK', 0 }, 0
for _ = 1, ids do at = at + 2 + (tonumber(ARGV[at + 1]) or math.huge) end
local fit = ids > 0 and tonumber(ARGV[6]) == ids and at == #ARGV + 1 and #ARGV <= 1006 + 2 * ids and #ARGV[5] <= 15
fit = fit and ARGV[5]:find('^[1-9]%d*$')
if not fit then return redis.error_reply('BADARG expected remember_ms, ids, and for each its key and visitors') end
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
if last_n and n - last_n == 0 then
  reply = { 'DUP' }
  for word in last:gmatch(' (%S+)') do reply[#reply + 1] = tonumber(word) or word end
  return reply
end

local hits, pending = tonumber(call('HGET', meta, 'hits')) or 0, call('HLEN', buffer)
-- what can be refused as a whole (OOM, READONLY, MISCONF) is refused here; below an id can only fail by itself
if caller ~= '' then redis.call('HSET', KEYS[1], caller, n) else redis.call('HINCRBY', KEYS[4], 'hits', 0) end
local max = tonumber(max_pending) or 1000000
at = 7
-- up to 512 fields Redis walks a hash as a list; a field longer than any id makes it a table
local longer = pending < 64 and pending + ids >= 64 and string.rep(' ', 256)
for k = 5, #KEYS do
  local id, key, first, new = ARGV[at], KEYS[k], at + 2, {}
  at = first + ARGV[at + 1]
  local known = pcall('SMISMEMBER', key, unpack(ARGV, first, at - 1))
  local other = pending + ids > max and call('HEXISTS', buffer, id) == 0
  local word = known.err and 'WRONGTYPE' or (id == '' or #id > 255) and 'BADID' or other and pending >= max and 'FULL'
  for i = first, at - 1 do
    local is_new = known[i - first + 1] ~= 1 and not new[ARGV[i]]
    reply[#reply + 1] = is_new and (word or 1) or 0
    if is_new and not word then new[#new + 1], new[ARGV[i]] = ARGV[i], #reply end
  end
  -- noted before it is counted: if the script is refused in between, no visitor is counted again
  if new[1] and call('SADD', key, unpack(new)) then call('PEXPIRE', key, ARGV[5]) end
  local sum = new[1] and pcall('HINCRBY', buffer, id, #new)
  if type(sum) == 'table' then
    call('SREM', key, unpack(new))
    for i = 1, #new do reply[new[new[i]]] = 'RANGE' end
  elseif sum then
    counted, pending = counted + #new, pending + (other and 1 or 0)
  end
end
if longer and call('HSET', buffer, longer, '0') then call('HDEL', buffer, longer) end
if counted > 0 then pcall('HINCRBY', meta, 'hits', counted) end
if counted > 0 and hits == 0 then
  local time = ARGV[4] ~= '' and { '0', ARGV[4] .. '000' } or call('TIME')
  call('HSET', meta, 'first_at', string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000)))
  -- of a partition that was never configured
  call('HSETNX', meta, 'incarnation', redis.sha1hex(meta .. caller .. n .. time[1] .. time[2]):sub(1, 16))
end
if caller ~= '' then redis.call('HSET', KEYS[1], caller, n .. ' ' .. table.concat(reply, ' ', 3)) end
reply[2] = hits + counted
return reply
