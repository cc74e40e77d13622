-- series_get, revision 1
-- Reads whole windows: every slice, with 0 where nothing was counted.
--
-- KEYS
--   1 calls         hash      of the home partition: =windows
--   2 calendar:day  zset      of the home, as series_calendar wrote it: date -> start in seconds
--   3 calendar:month  zset    likewise, of each month's first day
--   4 series:LABEL:NAME...  hash  start in seconds -> count; one window or more, up to 100
-- ARGV
--   1 label         word      of the windows: 60s for slices of 60 s, day or month
--   2 now_ms        integer   "" for the server's clock; anything else is for tests
-- REPLIES
--   {"OK", starts, counts...}  the starts of the slices in Unix seconds, ascending, separated by
--                             spaces, the current slice last; for each window the counts of these
--   {"MISMATCH"}              the family has no window of that label, or was not configured in this
--                             Redis; family_epoch returns the labels
--   {"NOCALENDAR"}            the list of days or months ends before now: no reconciler runs
-- ERRORS
--   BADARG                    a key or an argument is missing, or too many of them
-- REPEAT  safe: it only reads
-- SINCE   0.1.0

local label, format = ARGV[1], string.format
if #KEYS < 4 or #KEYS > 103 or #ARGV ~= 2 then
  return redis.error_reply('BADARG expected calls, calendars, 1 to 100 windows; label and now_ms')
end
local time = redis.call('TIME')
local now_ms = tonumber(ARGV[2]) or time[1] * 1000 + math.floor(time[2] / 1000)
local now_s, size = math.floor(now_ms / 1000), nil
for its_label, slices in (redis.call('HGET', KEYS[1], '=windows') or ''):gmatch('(%S+) (%d+)') do
  if its_label == label then size = tonumber(slices) end
end
if not size then return { 'MISMATCH' } end
local length, starts = tonumber(label:match('^(%d+)s$')), {}
if length then
  local current = math.floor(now_s / length) * length
  for i = 1, size do starts[i] = format('%.0f', current + (i - size) * length) end
else
  local calendar = label == 'month' and KEYS[3] or KEYS[2]
  local begun = redis.call('ZCOUNT', calendar, '-inf', format('%.0f', now_s))
  -- and the one after the window: without it the end of the current slice is unknown
  local slices = redis.call('ZRANGE', calendar, math.max(begun - size, 0), begun, 'WITHSCORES')
  local known = math.min(begun, size)
  if begun == 0 or #slices <= 2 * known then return { 'NOCALENDAR' } end
  for i = 1, known do starts[i] = slices[2 * i] end
end
local reply = { 'OK', table.concat(starts, ' ') }
for k = 4, #KEYS do
  local fields, counts, counted = redis.call('HGETALL', KEYS[k]), {}, {}
  for i = 1, #fields, 2 do counted[fields[i]] = fields[i + 1] end
  for i = 1, #starts do counts[i] = counted[starts[i]] or '0' end
  reply[k - 1] = table.concat(counts, ' ')
end
return reply
