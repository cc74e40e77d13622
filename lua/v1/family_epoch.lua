-- family_epoch, revision 1
-- Returns the epoch that counting calls name, and the generation of requests; begins new ones.
--
-- KEYS
--   1 calls         hash      of the caller's home partition: caller -> "N ...", its last call in
--                             this epoch; =now, =before, =began_at; what family_configure wrote,
--                             or =refused by family_refuse
--   2 calls_before  hash      the same of the epoch before
--   3 requests      hash      "LENGTH:REQUEST:ID" -> what a pair with this request got; =now,
--                             =before, =began_at, =tag
--   4 requests_before  hash  the same of the generation before
-- ARGV
--   1 kind          word      what the caller is configured for: buffered, cached, series,
--                             activity, visitors; "" for any
--   2 partitions    integer   likewise; "" for any
--   3 database      string    id of the database that the caller counts for; "" for any
--   4 now_ms        integer   "" for the server's clock; anything else is for tests
-- REPLIES
--   {"OK", epoch, generation, kind, partitions, description}  the epoch is valid for a minute at
--                             least, ask again after 30 s; a request names the generation from its
--                             first send on, "" for a kind without requests; the rest is as
--                             family_configure wrote it
--   {"MISMATCH", kind, partitions, database}  the family is another one than the caller is
--                             configured for, or belongs to another database; nothing done
--   {"UNCONFIGURED", reason}  the family was never configured in this Redis, or Redis lost its
--                             memory: do not count; why a daemon refuses it, "" if none does
-- ERRORS
--   BADARG                    an argument is missing, or no such partition; nothing done
--   BADKEY                    a key is misspelt; nothing done
-- REPEAT  safe
-- SINCE   0.1.0
-- CALLER  Partition::epoch in src/scripts/partition/epoch.rs
-- VECTORS lua/vectors/family_epoch.json

local calls, calls_before, requests, requests_before = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local caller_kind, partitions_text, caller_database, test_ms = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local is_kind = {
  buffered = true, cached = true, series = true, activity = true, visitors = true, [''] = true,
}
local form = '^(cf1:{([a-z0-9_.%-]+)/([a-z0-9_.%-]+)/(%d+)}:)calls$'
local tag, namespace, family, partition = (calls or ''):match(form)
if not tag or #namespace > 64 or #family > 64 or partition:find('^0%d') or #KEYS ~= 4
  or calls_before ~= tag .. 'calls_before' or requests ~= tag .. 'requests'
  or requests_before ~= tag .. 'requests_before' then
  return redis.error_reply('BADKEY expected calls, calls_before, requests, requests_before of one '
    .. 'cf1:{NAMESPACE/FAMILY/PARTITION}:, names of [a-z0-9_.-]{1,64}, a number '
    .. 'without leading zeros')
end
local partitions = partitions_text == '' and math.huge or tonumber(partitions_text)
local is_beyond = partitions and partitions <= tonumber(partition)
if #ARGV ~= 4 or not is_kind[caller_kind] or not partitions or is_beyond then
  return redis.error_reply('BADARG expected a kind, more partitions than ' .. partition
    .. ', a database, and now_ms')
end

-- check that the family is the one that the caller is configured for
local now, began_at, kind, own_partitions, description, own_database, own_settings = unpack(
  redis.call('HMGET', calls, '=now', '=began_at', '=kind', '=partitions', '=description',
    '=database', '=settings'))
local database, settings = own_database or '', own_settings or ''
if not kind then return { 'UNCONFIGURED', redis.call('HGET', calls, '=refused') or '' } end
local fits = (caller_kind == '' or caller_kind == kind)
  and (partitions_text == '' or partitions == tonumber(own_partitions))
local mismatch = { 'MISMATCH', kind, own_partitions, database }
local is_foreign = caller_database ~= '' and database ~= '' and caller_database ~= database
if not fits or tonumber(partition) >= tonumber(own_partitions) then return mismatch end
if is_foreign then return mismatch end -- guard: Database
local time = redis.call('TIME')
local now_ms = tonumber(test_ms) or time[1] * 1000 + math.floor(time[2] / 1000)
local began = string.format('%.0f', now_ms)

-- Makes a name. The server makes all names, so that one which was forgotten is not issued again. In
-- tests it depends on the given time only.
local function name_after(last)
  local seed = test_ms == '' and { time[1], time[2], last } or { last }
  return redis.sha1hex(table.concat(seed, ' ') .. now_ms):sub(1, 16)
end

-- Makes the current memory the one before. A crash may keep only the first of these writes. So the
-- name of the memory before is removed first, and no name is known whose memory is gone.
local function age_memory(memory, memory_before, name)
  redis.call('HSET', memory, '=before', name)
  redis.call('UNLINK', memory_before)
  redis.call('RENAME', memory, memory_before)
end

-- begin a generation of requests, if the kind has them and the current one is over
local generation, remember_ms = '', redis.call('HGET', calls, '=remember_requests')
if remember_ms then
  local known, known_at = unpack(redis.call('HMGET', requests, '=now', '=began_at'))
  local age = known and now_ms - known_at
  generation = known or ''
  -- after the clock stepped back, the generation lasts longer: it must not end early
  if age and age < 0 then redis.call('HSET', requests, '=began_at', began) end
  if not age or age >= tonumber(remember_ms) then
    generation = name_after('request ' .. generation)
    if known then age_memory(requests, requests_before, known) end
    -- lua/README.md, "Small hashes"
    redis.call('HSET', requests, '=now', generation, '=began_at', began, '', (' '):rep(256))
    if known then redis.call('HSET', requests, '=before', known) end
    redis.call('HDEL', requests, '')
  end
end

-- begin an epoch, if the current one is a minute old; also if it lies ahead of the clock, which
-- stepped back: the epoch would last too long
local age = now and now_ms - began_at
if not age or age < 0 or age >= 60000 then
  local name = name_after(now or '')
  local values = { '=now', name, '=before', now or name, '=began_at', began, '=kind', kind,
    '=partitions', own_partitions, '=database', database, '=description', description,
    '=settings', settings }
  for setting in settings:gmatch('%S+') do
    local value = redis.call('HGET', calls, '=' .. setting)
    if value then values[#values + 1], values[#values + 2] = '=' .. setting, value end
  end
  if now then age_memory(calls, calls_before, now) end
  redis.call('HSET', calls, unpack(values))
  now = name
end
return { 'OK', now, generation, kind, own_partitions, description }
