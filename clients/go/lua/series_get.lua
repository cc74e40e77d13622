-- series_get, revision 1
-- Reads windows.
--
-- KEYS
--   1 series:LABEL:NAME...  hash  slice's start in Unix seconds -> count; one window or more, up to
--                                 100
-- ARGV
--   1 now_ms        integer   "" for the server's clock; anything else is for tests
-- REPLIES
--   {"OK", now_ms, text...}   the server's time, a string; for each window "start count start count
--                             ..." as it lies there, in no order, "" if it is empty; slices that
--                             left the window may be among them
-- ERRORS
--   BADARG                    no key, too many of them, or not one argument
-- REPEAT  safe: it only reads
-- SINCE   0.1.0

if #KEYS < 1 or #KEYS > 100 or #ARGV ~= 1 then
  return redis.error_reply('BADARG expected 1 to 100 windows, and now_ms')
end
local time = redis.call('TIME')
local now = tonumber(ARGV[1]) or time[1] * 1000 + math.floor(time[2] / 1000)
local reply = { 'OK', string.format('%.0f', now) }
for i, key in ipairs(KEYS) do reply[i + 2] = table.concat(redis.call('HGETALL', key), ' ') end
return reply
