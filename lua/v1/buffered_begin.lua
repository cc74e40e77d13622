-- buffered_begin, revision 1
-- Gives a partition that never cut a batch its incarnation, so that a reader has something to compare with the ledger.
--
-- KEYS
--   1 meta          hash      incarnation, seq
-- ARGV
--   1 incarnation   hex16     random, 16 hexadecimal digits in lower case, new for each call; kept when there is none
-- REPLIES
--   {"OK", incarnation, seq}  what the partition has now
-- ERRORS
--   BADARG                    an argument is missing or wrong; nothing done
-- REPEAT  safe
-- SINCE   0.1.0

if #KEYS ~= 1 or #ARGV ~= 1 or #ARGV[1] ~= 16 or ARGV[1]:find('[^0-9a-f]') then
  return redis.error_reply('BADARG expected meta, and an incarnation of 16 hexadecimal digits')
end
local state = redis.call('HMGET', KEYS[1], 'incarnation', 'seq')
if state[1] then return { 'OK', state[1], state[2] or '0' } end
redis.call('HSET', KEYS[1], 'incarnation', ARGV[1])
return { 'OK', ARGV[1], '0' }
