-- series_calendar, revision 1
-- Writes when the days or months of a time zone begin. What has begun never changes.
--
-- KEYS
--   1 calendar:day  zset      of a home partition: date -> start in seconds; or calendar:month
-- ARGV
--   1 now_ms        integer   "" for the server's clock; anything else is for tests
--   2 start, date   pairs     in Unix seconds, ascending, and the date of its first day: those of
--                             the windows, and of what may still come late, the current one, and at
--                             least 14 days or 3 months ahead; 2 to 1500 pairs
-- REPLIES
--   {"OK", changed}           so many were added, moved or removed. Those that have begun, or begin
--                             within an hour, stay as they are; later ones are those of the call
--   {"STALE", now_ms}         the server's time, a string, is not within the list; nothing done:
--                             send the one of that time
-- ERRORS
--   BADARG                    an argument is missing or wrong; nothing done
-- REPEAT  safe
-- SINCE   0.1.0

local calendar, fits = KEYS[1], #KEYS == 1 and #ARGV >= 5 and #ARGV <= 3001 and #ARGV % 2 == 1
for i = 2, fits and #ARGV or 0, 2 do
  fits = fits and ARGV[i]:find('^%-?%d+$') and #ARGV[i] <= 12 and #ARGV[i + 1] == 10
  fits = fits and (i == 2 or tonumber(ARGV[i]) > tonumber(ARGV[i - 2]))
end
if not fits then
  return redis.error_reply('BADARG expected a calendar; now_ms, 2 to 1500 starts with their dates')
end
local time = redis.call('TIME')
local now_ms = tonumber(ARGV[1]) or time[1] * 1000 + math.floor(time[2] / 1000)
local now_s = math.floor(now_ms / 1000)
if tonumber(ARGV[2]) > now_s or tonumber(ARGV[#ARGV - 1]) <= now_s then
  return { 'STALE', string.format('%.0f', now_ms) }
end
-- an hour more than what has begun, since the clock may step back
local until_s = now_s + 3600
local known, stays, later = redis.call('ZRANGE', calendar, 0, -1, 'WITHSCORES'), {}, {}
local first, last = math.huge, -math.huge
for i = 1, #known, 2 do
  local date, start = known[i], tonumber(known[i + 1])
  if start > until_s then
    later[date] = start
  else
    stays[date] = true
    first, last = math.min(first, start), math.max(last, start)
  end
end
-- where the list has ended, nothing was counted since
local goes_on, starts, added, removed = next(later) ~= nil, {}, {}, {}
for i = 2, #ARGV, 2 do
  local start, date, is_free = tonumber(ARGV[i]), ARGV[i + 1], true
  local is_new = start > until_s or start < first or not goes_on and start > last
  if stays[date] or not is_new then is_free = false end -- guard: Begun
  starts[date] = is_free and start or later[date]
  if is_free and later[date] ~= start then
    added[#added + 1] = ARGV[i]
    added[#added + 1] = date
  end
end
for date, start in pairs(later) do
  if starts[date] ~= start then removed[#removed + 1] = date end
end
-- more than any window has
for i = 1, #known - 6000, 2 do removed[#removed + 1] = known[i] end
if removed[1] then redis.call('ZREM', calendar, unpack(removed)) end
if added[1] then redis.call('ZADD', calendar, unpack(added)) end
return { 'OK', math.max(#removed, #added / 2) }
