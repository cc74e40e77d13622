-- series_close, revision 1
-- Moves what can no longer change to the buffer, and so on its way to the database.
--
-- KEYS
--   1 open          hash      kept id -> count of a slice that is not over, to be kept in the
--                             database
--   2 schedule      zset      kept id -> ms: when its slice is over; every id in open is on it
--   3 buffer        hash      id -> pending delta
--   4 meta          hash      hits, first_at
-- ARGV
--   1 limit         integer   how many ids at most, 1 to 1000
--   2 all           flag      1: also what is not over; what is counted into it later opens it
--                             again, and is added; 0: not
--   3 now_ms        integer   "" for the server's clock; anything else is for tests
-- REPLIES
--   {"OK", moved, next_ms}    how many ids joined the buffer; in how many ms the next slice is
--                             over, an integer, 0 for at once, or "" if there is none. A count that
--                             cannot join, since the sum would leave i64, stays, and is looked at
--                             again a minute later. Where an id is over, open loses the field "" of
--                             no id
-- ERRORS
--   BADARG                    a key or an argument is missing, or wrong; nothing done
-- REPEAT  safe
-- SINCE   0.1.0

local open, schedule, buffer, meta = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local limit = tonumber(ARGV[1]) or 0
if #KEYS ~= 4 or #ARGV ~= 3 or limit < 1 or limit > 1000 then
  return redis.error_reply('BADARG expected open, schedule, buffer and meta; a limit of 1 to 1000, '
    .. 'all, and now_ms')
end
local time = ARGV[3] ~= '' and { '0', ARGV[3] .. '000' } or redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local now_ms = string.format('%.0f', now)
local until_ms = ARGV[2] == '1' and '+inf' or now_ms
local due = redis.call('ZRANGEBYSCORE', schedule, '-inf', until_ms, 'LIMIT', '0', ARGV[1])
local held, hits = redis.call('HLEN', buffer), redis.call('HGET', meta, 'hits')
-- Redis asks for one id at least
local counts, moved = redis.call('HMGET', open, '', unpack(due)), 0

-- the field of no id, which half a script may have left; and after a write a script may continue
-- where memory is full, since draining must work there
if due[1] then redis.call('HDEL', open, '') end
local grows = held < 64 and held + #due >= 64
if grows then redis.call('HSET', buffer, '', (' '):rep(256)) end -- lua/README.md, "Small hashes"
for i, id in ipairs(due) do
  local count = counts[i + 1]
  local sum = count and redis.pcall('HINCRBY', buffer, id, count)
  if type(sum) == 'table' then
    redis.call('ZADD', schedule, string.format('%.0f', now + 60000), id)
  else
    redis.call('ZREM', schedule, id)
    if sum then
      redis.call('HDEL', open, id) -- guard: Handover
      moved = moved + 1
    end
  end
end
if grows then redis.call('HDEL', buffer, '') end
if moved > 0 then
  if tonumber(hits or 0) == 0 then redis.call('HSET', meta, 'first_at', now_ms) end
  -- of a partition that was never configured
  redis.call('HSETNX', meta, 'incarnation', redis.sha1hex(meta .. time[1] .. time[2]):sub(1, 16))
  redis.pcall('HINCRBY', meta, 'hits', moved)
end
local next_one = redis.call('ZRANGE', schedule, '0', '0', 'WITHSCORES')
return { 'OK', moved, next_one[2] and math.max(0, tonumber(next_one[2]) - now) or '' }
