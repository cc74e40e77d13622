-- family_epoch, revision 1
-- Returns the epoch that counting calls name, and begins a new one at most once a minute.
--
-- KEYS
--   1 calls         hash      of the caller's home partition: caller -> "N ...", its last call in
--                             this epoch; =now, =before, =began_at; what family_configure wrote
--   2 calls_before  hash      the same of the epoch before
-- ARGV
--   1 kind          word      what the caller is configured for: buffered, cached, series,
--                             activity, visitors; "" for any
--   2 partitions    integer   likewise; "" for any
--   3 database      string    id of the database that the caller counts for; "" for any
--   4 now_ms        integer   "" for the server's clock; anything else is for tests
-- REPLIES
--   {"OK", epoch, before, kind, partitions, description}  valid for a minute at least; ask again
--                             after 30 s. A call that names the epoch before is looked up in both
--                             memories; it is the same one where there was none. The rest is as
--                             family_configure wrote it
--   {"MISMATCH", kind, partitions, database}  the family is another one than the caller is
--                             configured for, or belongs to another database; nothing done
--   {"UNCONFIGURED"}          the family was never configured in this Redis, or Redis lost its
--                             memory: do not count
-- ERRORS
--   BADARG                    an argument is missing, or no such partition; nothing done
--   BADKEY                    a key is misspelt; nothing done
-- REPEAT  safe
-- SINCE   0.1.0

local kinds = { 'buffered', 'cached', 'series', 'activity', 'visitors', '' }
local is_kind = {}
for _, one in ipairs(kinds) do is_kind[one] = true end
local calls, calls_before = KEYS[1], KEYS[2]
local form = '^(cf1:{([a-z0-9_.%-]+)/([a-z0-9_.%-]+)/(%d+)}:)calls$'
local tag, namespace, family, partition = (calls or ''):match(form)
if not tag or #namespace > 64 or #family > 64 or partition:find('^0%d') or #KEYS ~= 2
  or calls_before ~= tag .. 'calls_before' then
  return redis.error_reply('BADKEY expected calls and calls_before of one '
    .. 'cf1:{NAMESPACE/FAMILY/PARTITION}:, names of [a-z0-9_.-]{1,64}, a number '
    .. 'without leading zeros')
end
local partitions = ARGV[2] == '' and math.huge or tonumber(ARGV[2])
if #ARGV ~= 4 or not is_kind[ARGV[1]] or not partitions or partitions <= tonumber(partition) then
  return redis.error_reply('BADARG expected a kind, more partitions than ' .. partition
    .. ', a database, and now_ms')
end

local fields = { '=now', '=before', '=began_at', '=kind', '=partitions', '=description',
  '=database', '=settings' }
local state = redis.call('HMGET', calls, unpack(fields))
local now, before, began_at, kind, right = unpack(state, 1, 5)
local description, database, settings = state[6], state[7] or '', state[8] or ''
if not kind then return { 'UNCONFIGURED' } end
local fits = (ARGV[1] == '' or ARGV[1] == kind) and (ARGV[2] == '' or partitions == tonumber(right))
local mismatch = { 'MISMATCH', kind, right, database }
local is_foreign = ARGV[3] ~= '' and database ~= '' and ARGV[3] ~= database
if not fits or tonumber(partition) >= tonumber(right) then return mismatch end
if is_foreign then return mismatch end -- guard: Database
local time = redis.call('TIME')
local now_ms = tonumber(ARGV[4]) or time[1] * 1000 + math.floor(time[2] / 1000)
local age = now and now_ms - began_at
-- a clock that stepped back must not hold an epoch for ever
if age and age >= 0 and age < 60000 then
  return { 'OK', now, before or now, kind, right, description }
end

-- the server makes the name, so that one that was forgotten cannot be issued again
local seed = { ARGV[4], time[1], time[2], now or '' }
local name = redis.sha1hex(table.concat(seed, ' ', ARGV[4] == '' and 2 or 4) .. now_ms):sub(1, 16)
local began = string.format('%.0f', now_ms)
local values = { '=now', name, '=before', now or name, '=began_at', began, '=kind', kind,
  '=partitions', right, '=database', database, '=description', description, '=settings', settings }
for setting in settings:gmatch('%S+') do
  values[#values + 1] = '=' .. setting
  values[#values + 1] = redis.call('HGET', calls, '=' .. setting) or ''
end
if now then
  -- first, since a crash may keep a part of these writes: an epoch is forgotten before its callers
  redis.call('HSET', calls, '=before', now)
  redis.call('UNLINK', calls_before)
  redis.call('RENAME', calls, calls_before)
end
redis.call('HSET', calls, unpack(values))
return { 'OK', name, now or name, kind, right, description }
