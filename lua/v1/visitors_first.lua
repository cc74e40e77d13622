-- visitors_first, revision 1
-- Counts each visitor of an id once: whoever is new to it adds 1 to what it has pending.
--
-- KEYS
--   1 calls         hash      of the caller's home partition: caller -> "N WORD...", its last call
--                             in this epoch and the outcome of each visitor; =now, =before,
--                             =max_pending; =remember, for so many ms after the last new one an
--                             id's visitors are remembered
--   2 calls_before  hash      the same of the epoch before
--   3 buffer        hash      id -> pending delta
--   4 meta          hash      hits, refused, first_at
--   5 seen:ID...    set       visitors of the id; then the key of the next id
-- ARGV
--   1 caller        string    random, no "=" in front; one call in flight; "" gives up the fence
--   2 n             integer   number of the call, higher than the caller's last, 1 to 2^53
--   3 epoch         string    as family_epoch returned it
--   4 now_ms        integer   "" for the server's clock; anything else is for tests
--   5 ids           integer   how many ids follow
--   6 id, count, visitor...  ids  id: 1 to 255 bytes, UTF-8; count: of its visitors that follow, 1
--                                 or more; visitor: bytes of any kind; 1000 visitors in all at most
-- REPLIES
--   {"OK", total, word...}    hits since the last rotation; for each visitor 1 where it is new to
--                             the id, 0 where it was there, or why it is not counted, nor noted:
--                             FULL (the buffer holds max_pending other ids), BADID (too long, or
--                             empty), RANGE (beyond i64), WRONGTYPE (a foreign key)
--   {"DUP", word...}          executed before, nothing done now; the same words
--   {"PASSED"}  the caller made a later call: nothing done now, the outcome is unknown
--   {"EXPIRED"}  unknown epoch: nothing done now, the outcome of earlier arrivals is unknown
-- ERRORS
--   BADARG                    the arguments do not fit the keys, or the family is of another kind;
--                             nothing done
-- REPEAT  safe with a caller, from any process; a visitor counts once in any case
-- SINCE   0.1.0

local call, pcall = redis.call, redis.pcall
local own_kind, caller, n, epoch = 'visitors', ARGV[1], ARGV[2], ARGV[3]
local own_settings = { '=max_pending', '=remember' }
local buffer, meta, ids = KEYS[3], KEYS[4], #KEYS - 4
local starts, fits = { 6 }, ids > 0 and tonumber(ARGV[5]) == ids and #ARGV <= 1005 + 2 * ids
for i = 1, ids do
  local count = tonumber(ARGV[starts[i] + 1]) or 0
  fits = fits and count >= 1
  starts[i + 1] = starts[i] + 2 + count
end
if not fits or starts[ids + 1] ~= #ARGV + 1 then
  return redis.error_reply('BADARG expected ids, and for each its key and visitors, 1000 visitors '
    .. 'in all at most')
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
if ahead == 0 then
  local words = { 'DUP' }
  for word in last:gmatch(' (%S+)') do words[#words + 1] = tonumber(word) or word end
  return words
end

local remember_ms = tonumber(state[5]) or 259200000
local hits, held = tonumber(call('HGET', meta, 'hits')) or 0, call('HLEN', buffer)
local max, pending = tonumber(state[4]) or 1000000, held
-- what can be refused as a whole is refused here; below an id can only fail by itself
if caller == '' then call('HINCRBY', meta, 'hits', 0) else call('HSET', KEYS[1], caller, n) end
local reply, at, counted, refused = { 'OK', 0 }, 2, 0, 0
for i = 1, ids do
  local id, seen, first, final = ARGV[starts[i]], KEYS[4 + i], starts[i] + 2, starts[i + 1] - 1
  local known = pcall('SMISMEMBER', seen, unpack(ARGV, first, final))
  local is_other = pending + ids > max and call('HEXISTS', buffer, id) == 0
  local refusal
  if is_other and pending >= max then refusal = 'FULL' end
  if id == '' or #id > 255 then refusal = 'BADID' end
  if known.err then refusal = 'WRONGTYPE' end
  local new, places = {}, {}
  for arg = first, final do
    local visitor, word = ARGV[arg], refusal or 1
    if known[arg - first + 1] == 1 or places[visitor] then word = 0 end
    at = at + 1
    reply[at] = word
    if word == refusal then refused = refused + 1 end
    if word == 1 then
      new[#new + 1] = visitor
      places[visitor] = true
    end
  end
  if new[1] then
    -- noted before it is counted: if the script is refused in between, none is counted again
    call('SADD', seen, unpack(new))
    call('PEXPIRE', seen, remember_ms)
    local sum = pcall('HINCRBY', buffer, id, #new)
    if type(sum) == 'table' then
      call('SREM', seen, unpack(new))
      for arg = first, final do
        local is_refused = places[ARGV[arg]]
        if is_refused then
          reply[at - final + arg] = 'RANGE'
          refused = refused + 1
        end
      end
    else
      counted = counted + #new
      if is_other then pending = pending + 1 end
    end
  end
end
if held < 64 and held + ids >= 64 then -- lua/README.md, "Small hashes"
  call('HSET', buffer, '', (' '):rep(256))
  call('HDEL', buffer, '')
end
if counted > 0 then pcall('HINCRBY', meta, 'hits', counted) end
if refused > 0 then pcall('HINCRBY', meta, 'refused', refused) end
if counted > 0 and hits == 0 then
  local time = ARGV[4] ~= '' and { '0', ARGV[4] .. '000' } or call('TIME')
  call('HSET', meta, 'first_at', ('%.0f'):format(time[1] * 1000 + math.floor(time[2] / 1000)))
  -- of a partition that was never configured
  local incarnation = redis.sha1hex(meta .. caller .. n .. time[1] .. time[2]):sub(1, 16)
  call('HSETNX', meta, 'incarnation', incarnation) -- guard: Incarnation
end
if caller ~= '' then
  call('HSET', KEYS[1], caller, n .. ' ' .. table.concat(reply, ' ', 3))
end
reply[2] = hits + counted
return reply
