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
-- CALLER  Partition::names in src/scripts/partition/series.rs
-- VECTORS lua/vectors/series_names.json

local names, idle, prefix, after, limit_text = KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3]
local limit, test_ms = tonumber(limit_text) or 0, ARGV[4]
local fits = #KEYS == 2 and #ARGV == 4 and limit >= 1 and limit <= 1000
if not fits or after ~= '' and after:sub(1, #prefix) ~= prefix then
  return redis.error_reply('BADARG expected names and idle; a prefix, "" or such a name, '
    .. '1 to 1000, and now_ms')
end

-- read a page: the names behind the last one, up to the end of those with the prefix
local time = redis.call('TIME')
local now = tonumber(test_ms) or time[1] * 1000 + math.floor(time[2] / 1000)
local from = after ~= '' and '(' .. after or '[' .. prefix
-- a name has 200 bytes at most, so this is behind every name with the prefix
local to = '(' .. prefix .. string.rep('\255', 256)
local found = redis.call('ZRANGEBYLEX', names, from, to, 'LIMIT', '0', limit_text)
-- Leave out the names that are idle. Redis asks for one name at least, so the times follow that of
-- the prefix.
local times = redis.call('ZMSCORE', idle, prefix, unpack(found))
local reply = { 'OK', found[limit] or '' }
for i, name in ipairs(found) do
  if times[i + 1] and tonumber(times[i + 1]) > now then reply[#reply + 1] = name end
end
return reply
