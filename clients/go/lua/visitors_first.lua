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
-- CALLER  Partition::first_visits in src/scripts/partition/visitors.rs
-- VECTORS lua/vectors/visitors_first.json

local call, pcall = redis.call, redis.pcall
local calls, buffer, meta, keys_before_ids = KEYS[1], KEYS[3], KEYS[4], 4
local own_kind, caller, n, epoch = 'visitors', ARGV[1], ARGV[2], ARGV[3]
local test_ms, id_count = ARGV[4], tonumber(ARGV[5])

-- check the arguments of each id: itself, its visitor_count, and the visitors
local first_id, arg, ids = 6, 6, #KEYS - keys_before_ids
local fits = ids > 0 and id_count == ids and #ARGV <= 1005 + 2 * ids
for _ = 1, fits and ids or 0 do
  local visitor_count, first_visitor = tonumber(ARGV[arg + 1]) or 0, arg + 2
  fits = fits and visitor_count >= 1
  arg = first_visitor + visitor_count
end
if not fits or arg ~= #ARGV + 1 then
  return redis.error_reply('BADARG expected ids, and for each its key and visitors, 1000 visitors '
    .. 'in all at most')
end
local state = call('HMGET', calls, '=now', '=kind', caller, '=max_pending', '=remember')
-- the fence, word for word the same in each counting script: a repeated call does not count again
local is_number = n:find('^[1-9]%d*$') and (#n < 16 or #n == 16 and n <= '9007199254740992')
if caller ~= '' and (caller:byte() == 61 or not is_number) then
  return redis.error_reply('BADARG expected n of 1 to 2^53, and a caller without = in front')
end
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

local max_pending, remember_ms = tonumber(state[4]) or 1000000, tonumber(state[5]) or 259200000
local hits, held = tonumber(call('HGET', meta, 'hits')) or 0, call('HLEN', buffer)
local pending, may_be_full = held, held + ids > max_pending

-- The first write notes the call. If Redis refuses it, as it does where memory is full, the script
-- ends here, and nothing was done. Redis accepts all later writes of the script, so from here on
-- only a single id can fail. A call without a caller has nothing to note, and adds 0 to a number.
if caller == '' then call('HINCRBY', meta, 'hits', 0) else call('HSET', calls, caller, n) end

-- count the visitors of each id
local reply, length, counted, refused = { 'OK', 0 }, 2, 0, 0
arg = first_id
for i = 1, ids do
  local id, visitor_count, first_visitor = ARGV[arg], ARGV[arg + 1], arg + 2
  local seen = KEYS[keys_before_ids + i]
  arg = first_visitor + visitor_count
  local visitors = { unpack(ARGV, first_visitor, arg - 1) }
  local known = pcall('SMISMEMBER', seen, unpack(visitors))
  local is_new_id = may_be_full and call('HEXISTS', buffer, id) == 0
  local refusal
  if is_new_id and pending >= max_pending then refusal = 'FULL' end
  if id == '' or #id > 255 then refusal = 'BADID' end
  if known.err then refusal = 'WRONGTYPE' end
  -- a visitor may occur several times in a call
  local new, is_new, words_before = {}, {}, length
  for v = 1, #visitors do
    local visitor, word = visitors[v], refusal or 1
    if known[v] == 1 or is_new[visitor] then word = 0 end
    length = length + 1
    reply[length] = word
    if word == refusal then refused = refused + 1 end
    if word == 1 then
      new[#new + 1] = visitor
      is_new[visitor] = true
    end
  end
  if new[1] then
    -- Visitors are noted before they are counted. So if Redis ends the script in between, since the
    -- user must not execute a command, a repeated call counts none of them twice.
    call('SADD', seen, unpack(new))
    call('PEXPIRE', seen, remember_ms)
    local sum = pcall('HINCRBY', buffer, id, #new)
    if type(sum) == 'table' then
      call('SREM', seen, unpack(new))
      local word_number = words_before
      for _, visitor in ipairs(visitors) do
        word_number = word_number + 1
        if is_new[visitor] then
          reply[word_number] = 'RANGE'
          refused = refused + 1
        end
      end
    else
      counted = counted + #new
      if is_new_id then pending = pending + 1 end
    end
  end
end
if held < 64 and held + ids >= 64 then -- lua/README.md, "Small hashes"
  call('HSET', buffer, '', (' '):rep(256))
  call('HDEL', buffer, '')
end

-- note the hits and how many visitors were refused, then the word of each visitor
if counted > 0 then pcall('HINCRBY', meta, 'hits', counted) end
if refused > 0 then pcall('HINCRBY', meta, 'refused', refused) end
if counted > 0 and hits == 0 then
  local time = test_ms ~= '' and { '0', test_ms .. '000' } or call('TIME')
  call('HSET', meta, 'first_at', ('%.0f'):format(time[1] * 1000 + math.floor(time[2] / 1000)))
  -- a partition that was never configured has no incarnation
  local incarnation = redis.sha1hex(meta .. caller .. n .. time[1] .. time[2]):sub(1, 16)
  call('HSETNX', meta, 'incarnation', incarnation) -- guard: Incarnation
end
if caller ~= '' then
  call('HSET', calls, caller, n .. ' ' .. table.concat(reply, ' ', 3))
end
reply[2] = hits + counted
return reply
