-- family_epoch, revision 1
-- Tells the epoch that counting calls are to name, and begins a new one at most once a minute.
--
-- KEYS
--   1 calls         hash      of the caller's home partition: caller -> "N ...", its last call in this epoch; =now,
--                             =before, =began_at; what family_configure wrote
--   2 calls_before  hash      the same of the epoch before
-- ARGV
--   1 kind          word      buffered, cached, series, activity or visitors
--   2 partitions    integer   how many the caller believes the family to have
--   3 now_ms        integer   "" for the server's clock; anything else is for tests
-- REPLIES
--   {"OK", epoch, before}     valid for a minute at least; ask again after 30 s. A call that names the epoch before is
--                             looked up in both memories; it is the same one where there was none
--   {"MISMATCH", kind, partitions}  the family is another one than the caller believes; nothing done
-- ERRORS
--   BADARG                    an argument is missing, or no such partition; nothing done
--   BADKEY                    a key is misspelt; nothing done
-- REPEAT  safe
-- SINCE   0.1.0

local kinds = { buffered = true, cached = true, series = true, activity = true, visitors = true }
local calls, calls_before, form = KEYS[1], KEYS[2], '^(cf1:{([a-z0-9_.%-]+)/([a-z0-9_.%-]+)/(%d+)}:)calls$'
local tag, namespace, family, partition = (calls or ''):match(form)
if not tag or #namespace > 64 or #family > 64 or partition:find('^0%d') or #KEYS ~= 2
  or calls_before ~= tag .. 'calls_before' then
  return redis.error_reply('BADKEY expected calls and calls_before of one cf1:{NAMESPACE/FAMILY/PARTITION}:, '
    .. 'names of [a-z0-9_.-]{1,64}, a number without leading zeros')
end
local partitions = tonumber(ARGV[2])
if #ARGV ~= 3 or not kinds[ARGV[1]] or not partitions or partitions <= tonumber(partition) then
  return redis.error_reply('BADARG expected a kind, more partitions than ' .. partition .. ', and now_ms')
end

local time = redis.call('TIME')
local now_ms = tonumber(ARGV[3]) or time[1] * 1000 + math.floor(time[2] / 1000)
local settings = { '=kind', '=partitions', '=max_pending', '=save_after_ms' }
local now, before, began_at = unpack(redis.call('HMGET', calls, '=now', '=before', '=began_at'))
local set = redis.call('HMGET', calls, unpack(settings))
local kind, right = set[1], set[2]
if kind and (kind ~= ARGV[1] or tonumber(right) ~= partitions) then return { 'MISMATCH', kind, right } end
local age = now and now_ms - began_at
-- a clock that stepped back must not hold an epoch for ever
if age and age >= 0 and age < 60000 then return { 'OK', now, before or now } end

-- the server makes the name, so that one that was forgotten cannot come again
local seed = { ARGV[3], time[1], time[2], now or '' }
local name = redis.sha1hex(table.concat(seed, ' ', ARGV[3] == '' and 2 or 4) .. now_ms):sub(1, 16)
local fields = { '=now', name, '=before', now or name, '=began_at', string.format('%.0f', now_ms) }
for i, setting in ipairs(settings) do
  if set[i] then fields[#fields + 1], fields[#fields + 2] = setting, set[i] end
end
if now then
  -- first, since a crash may keep a part of these writes: an epoch is forgotten before the callers of it are
  redis.call('HSET', calls, '=before', now)
  redis.call('UNLINK', calls_before)
  redis.call('RENAME', calls, calls_before)
end
redis.call('HSET', calls, unpack(fields))
return { 'OK', name, now or name }
