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
-- CALLER  Partition::write_calendars in src/scripts/partition/series.rs
-- VECTORS lua/vectors/series_calendar.json

local calendar, test_ms = KEYS[1], ARGV[1]
local first_start, last_start
local fits = #KEYS == 1 and #ARGV >= 5 and #ARGV <= 3001 and #ARGV % 2 == 1
for i = 2, fits and #ARGV or 0, 2 do
  local start_text, date = ARGV[i], ARGV[i + 1]
  local start = tonumber(start_text)
  fits = fits and start_text:find('^%-?%d+$') and #start_text <= 12 and #date == 10
  fits = fits and (not last_start or start > last_start)
  first_start, last_start = first_start or start, start
end
if not fits then
  return redis.error_reply('BADARG expected a calendar; now_ms, 2 to 1500 starts with their dates')
end
local time = redis.call('TIME')
local now_ms = tonumber(test_ms) or time[1] * 1000 + math.floor(time[2] / 1000)
local now_s = math.floor(now_ms / 1000)
if first_start > now_s or last_start <= now_s then
  return { 'STALE', string.format('%.0f', now_ms) }
end

-- Divide the known slices into those that stay, and later ones. What begins within an hour stays
-- like what has begun, since the clock may step back.
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

-- Find what the call adds: slices before those that stay, and later ones. It adds none between
-- them, unless the list has ended: then nothing was counted after the last slice that stays.
local goes_on, starts, added, removed = next(later) ~= nil, {}, {}, {}
for i = 2, #ARGV, 2 do
  local start_text, date, is_free = ARGV[i], ARGV[i + 1], true
  local start = tonumber(start_text)
  local is_new = start > until_s or start < first or not goes_on and start > last
  if stays[date] or not is_new then is_free = false end -- guard: Begun
  starts[date] = is_free and start or later[date]
  if is_free and later[date] ~= start then
    added[#added + 1] = start_text
    added[#added + 1] = date
  end
end

-- find what it removes: later slices that it moves or leaves out, and all but the last 3,000, which
-- is more than any window has
for date, start in pairs(later) do
  if starts[date] ~= start then removed[#removed + 1] = date end
end
for i = 1, #known - 6000, 2 do removed[#removed + 1] = known[i] end
if removed[1] then redis.call('ZREM', calendar, unpack(removed)) end
if added[1] then redis.call('ZADD', calendar, unpack(added)) end
return { 'OK', math.max(#removed, #added / 2) }
