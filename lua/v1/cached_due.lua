-- cached_due, revision 1
-- Names the counters that are due.
--
-- KEYS
--   1 schedule      zset      id -> ms: when something is next to be done about it
-- ARGV
--   1 count         integer   how many at most, 1 to 10000
--   2 horizon_ms    integer   nothing is scheduled further ahead: what is, is due, from before the clock stepped back
--   3 now_ms        integer   "" for the server's clock; anything else is for tests
-- REPLIES
--   {"OK", next_ms, id...}    those that are due, the oldest first, then those beyond the horizon; next_ms is in how
--                             many ms the next one that is not named here is due, an integer, 0 for at once, or "" if
--                             there is none
-- ERRORS
--   BADARG                    an argument is missing or wrong
-- REPEAT  safe: it only reads
-- SINCE   0.1.0

local count, horizon_ms = tonumber(ARGV[1]), tonumber(ARGV[2])
if #KEYS ~= 1 or #ARGV ~= 3 or not horizon_ms or not count or count < 1 or count > 10000 then
  return redis.error_reply('BADARG expected one key, a count of 1 to 10000, horizon_ms and now_ms')
end

local time = redis.call('TIME')
local now = tonumber(ARGV[3]) or time[1] * 1000 + math.floor(time[2] / 1000)
local now_ms, beyond = string.format('%.0f', now), string.format('%.0f', now + horizon_ms)
-- one more than is named tells whether another one is due
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now_ms, 'LIMIT', 0, count + 1)
local far = redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. beyond, '+inf', 'LIMIT', 0, count + 1 - #due)
for i = 1, #far do due[#due + 1] = far[i] end

local reply = { 'OK', 0 }
for i = 1, math.min(#due, count) do reply[2 + i] = due[i] end
if #due <= count then
  local ahead = redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. now_ms, beyond, 'WITHSCORES', 'LIMIT', 0, 1)
  reply[2] = ahead[2] and tonumber(ahead[2]) - now or ''
end
return reply
