-- buffered_scan, revision 1
-- Lists the ids with a prefix that have anything pending, one page of them a call.
--
-- KEYS
--   1 buffer        hash      id -> pending delta; or the batch. Scan all of the buffer before the
--                             batch that it becomes, or an id is missing
-- ARGV
--   1 cursor        cursor    "0" at first, then what the last page returned
--   2 prefix        bytes     what the ids begin with; "" for all
--   3 count         integer   about how many ids to look at, 1 to 10000
-- REPLIES
--   {"OK", cursor, {id, delta, ...}}  a page; cursor "0" with the last; an id may come twice
-- ERRORS
--   BADARG                    an argument is missing or wrong
-- REPEAT  safe: it only reads
-- SINCE   0.1.0
-- CALLER  Partition::scan in src/scripts/partition/buffered.rs
-- VECTORS lua/vectors/buffered_scan.json

local buffer_or_batch, cursor, prefix = KEYS[1], ARGV[1], ARGV[2]
local count_text, count = ARGV[3], tonumber(ARGV[3]) or 0
if #KEYS ~= 1 or #ARGV ~= 3 or not cursor:find('^%d+$') or count < 1 or count > 10000 then
  return redis.error_reply('BADARG expected a key, cursor, prefix, and a count of 1 to 10000')
end

-- a character with a meaning in patterns stands for itself
local pattern = prefix:gsub('[*?%[%]\\]', '\\%0') .. '*'
local found = redis.call('HSCAN', buffer_or_batch, cursor, 'MATCH', pattern, 'COUNT', count_text)
local next_cursor, page = unpack(found)
return { 'OK', next_cursor, page }
