-- family_epoch, revision 1
-- Tells the epoch that counting calls are to name, and begins a new one at most once a minute.
--
-- KEYS
--   1 epochs        hash      of the caller's home partition: now, before, began_at; kind, partitions, settings
--   2 calls         hash      caller -> "N ...": its last call in this epoch
--   3 calls_before  hash      the same of the epoch before
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
local form = '^(cf1:{([a-z0-9_.%-]+)/([a-z0-9_.%-]+)/(%d+)}:)epochs$'
local tag, namespace, family, partition = (KEYS[1] or ''):match(form)
if not tag or #namespace > 64 or #family > 64 or partition:find('^0%d') or #KEYS ~= 3
  or KEYS[2] ~= tag .. 'calls' or KEYS[3] ~= tag .. 'calls_before' then
  return redis.error_reply('BADKEY expected epochs, calls and calls_before of one cf1:{NAMESPACE/FAMILY/PARTITION}:, '
    .. 'names of [a-z0-9_.-]{1,64}, a number without leading zeros')
end
local partitions = tonumber(ARGV[2])
if #ARGV ~= 3 or not kinds[ARGV[1]] or not partitions or partitions <= tonumber(partition) then
  return redis.error_reply('BADARG expected a kind, more partitions than ' .. partition .. ', and now_ms')
end

local time = redis.call('TIME')
local now_ms = tonumber(ARGV[3]) or time[1] * 1000 + math.floor(time[2] / 1000)
local fields = redis.call('HMGET', KEYS[1], 'now', 'began_at', 'kind', 'partitions', 'before')
local now, began_at, kind, right, before = unpack(fields)
if kind and (kind ~= ARGV[1] or tonumber(right) ~= partitions) then return { 'MISMATCH', kind, right } end
local age = now and now_ms - began_at
-- a clock that stepped back must not hold an epoch for ever
if age and age >= 0 and age < 60000 then return { 'OK', now, before or now } end

-- the server makes the name, so that one that was forgotten cannot come again
local seed = { ARGV[3], time[1], time[2], now or '' }
local name = redis.sha1hex(table.concat(seed, ' ', ARGV[3] == '' and 2 or 4) .. now_ms)
redis.call('HSET', KEYS[1], 'now', name, 'before', now or name, 'began_at', string.format('%.0f', now_ms))
redis.call('UNLINK', KEYS[3])
if redis.call('EXISTS', KEYS[2]) == 1 then redis.call('RENAME', KEYS[2], KEYS[3]) end
return { 'OK', name, now or name }
