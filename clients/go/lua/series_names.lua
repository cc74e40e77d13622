-- series_names, revision 1
-- Lists the names with anything in a window, in the order of their bytes, one page of them a call.
--
-- KEYS
--   1 names         zset      name -> 0: those with anything in a window
--   2 idle          zset      name -> ms: when the last slice of it has left every window
-- ARGV
--   1 prefix        string    what the names begin with; "" for all
--   2 after         string    "" at first, then what the last page replied
--   3 limit         integer   how many names are looked at, 1 to 1000
--   4 now_ms        integer   "" for the server's clock; anything else is for tests
-- REPLIES
--   {"OK", after, name...}    a page, without those that are idle by now; after is "" with the last
--                             one
-- ERRORS
--   BADARG                    a key or an argument is missing, or wrong
-- REPEAT  safe: it only reads
-- SINCE   0.1.0

local prefix, after, limit = ARGV[1], ARGV[2], tonumber(ARGV[3]) or 0
local fits = #KEYS == 2 and #ARGV == 4 and limit >= 1 and limit <= 1000
if not fits or after ~= '' and after:sub(1, #prefix) ~= prefix then
  return redis.error_reply('BADARG expected names and idle; a prefix, "" or such a name, '
    .. '1 to 1000, and now_ms')
end
local time = redis.call('TIME')
local now = tonumber(ARGV[4]) or time[1] * 1000 + math.floor(time[2] / 1000)
local from = after ~= '' and '(' .. after or '[' .. prefix
-- no name is so long
local to = '(' .. prefix .. string.rep('\255', 256)
local found = redis.call('ZRANGEBYLEX', KEYS[1], from, to, 'LIMIT', '0', ARGV[3])
-- the first time is that of the prefix: Redis asks for one name at least
local times = redis.call('ZMSCORE', KEYS[2], prefix, unpack(found))
local reply = { 'OK', found[limit] or '' }
for i, name in ipairs(found) do
  if times[i + 1] and tonumber(times[i + 1]) > now then reply[#reply + 1] = name end
end
return reply
