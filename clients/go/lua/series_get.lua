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
-- CALLER  Partition::windows in src/scripts/partition/series.rs
-- VECTORS lua/vectors/series_get.json

local calls, calendar_of_days, calendar_of_months = KEYS[1], KEYS[2], KEYS[3]
local label, test_ms, format = ARGV[1], ARGV[2], string.format
if #KEYS < 4 or #KEYS > 103 or #ARGV ~= 2 then
  return redis.error_reply('BADARG expected calls, calendars, 1 to 100 windows; label and now_ms')
end

-- find the number of slices of the window
local time = redis.call('TIME')
local now_ms = tonumber(test_ms) or time[1] * 1000 + math.floor(time[2] / 1000)
local now_s, size = math.floor(now_ms / 1000), nil
for its_label, slices in (redis.call('HGET', calls, '=windows') or ''):gmatch('(%S+) (%d+)') do
  if its_label == label then size = tonumber(slices) end
end
if not size then return { 'MISMATCH' } end

-- find the places of its slices: by arithmetic, or by a list of starts
local length, first, starts, place_of = tonumber(label:match('^(%d+)s$')), nil, {}, {}
if length then
  first = (math.floor(now_s / length) - size + 1) * length
else
  local calendar = label == 'month' and calendar_of_months or calendar_of_days
  local begun = redis.call('ZCOUNT', calendar, '-inf', format('%.0f', now_s))
  -- the slice after the current one is read as well: without it the end of that is unknown
  local from = math.max(begun - size, 0)
  local slices = redis.call('ZRANGE', calendar, from, begun, 'WITHSCORES')
  size = math.min(begun, size)
  if begun == 0 or #slices <= 2 * size then return { 'NOCALENDAR' } end
  -- a date, then its start
  for place = 1, size do
    starts[place] = slices[2 * place]
    place_of[starts[place]] = place
  end
end

-- Read the counts of each window. The starts of a window's slices are taken as they stand in the
-- hash, since writing a number as text costs more than reading it. Fields outside of the window
-- get places that nothing reads.
local reply = { 'OK', '' }
for key = 4, #KEYS do
  local fields, counts = redis.call('HGETALL', KEYS[key]), {}
  for i = 1, #fields, 2 do
    local start, count = fields[i], fields[i + 1]
    if length then
      local place = ((tonumber(start) or 0) - first) / length + 1
      starts[place], counts[place] = start, count
    elseif place_of[start] then
      counts[place_of[start]] = count
    end
  end
  for place = 1, size do counts[place] = counts[place] or '0' end
  reply[key - 1] = table.concat(counts, ' ', 1, size)
end
for place = 1, size do
  starts[place] = starts[place] or format('%.0f', first + (place - 1) * length)
end
reply[2] = table.concat(starts, ' ', 1, size)
return reply
