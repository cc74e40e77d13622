-- buffered_backlog, revision 1
-- Counts what partitions have pending, and how old the oldest of it is, for monitoring.
--
-- KEYS
--   1 buffer        hash      id -> pending delta
--   2 batch         hash      id -> delta
--   3 meta          hash      hits, hits_before, refused, first_at, batch_first_at
--   4 requests      hash      "LENGTH:REQUEST:ID" -> what a pair with this request got; =now,
--                             =before, =began_at, =tag
--   5 requests_before  hash  the same of the generation before; then the five keys of the next
--                             partition, up to 200
-- ARGV
--   1 now_ms        integer   "" for the server's clock; anything else is for tests
-- REPLIES
--   {"OK", ids, oldest_ms, counted, refused, buffered, requests, ...}  six integers a partition:
--                             ids in buffer and batch; the age of their oldest hit, "" where
--                             nothing is pending; hits counted, and hits refused, since Redis has
--                             known the partition; ids in the buffer; requests that its home
--                             remembers
-- ERRORS
--   BADARG                    a key or an argument is missing, or too many of them
-- REPEAT  safe: it only reads
-- SINCE   0.1.0

if #KEYS < 5 or #KEYS > 1000 or #KEYS % 5 ~= 0 or #ARGV ~= 1 then
  return redis.error_reply('BADARG expected 1 to 200 times buffer, batch, meta, requests, '
    .. 'requests_before; and now_ms')
end
local time = redis.call('TIME')
local now = tonumber(ARGV[1]) or time[1] * 1000 + math.floor(time[2] / 1000)
local reply = { 'OK' }
for k = 1, #KEYS, 5 do
  local waiting, cut = redis.call('HLEN', KEYS[k]), redis.call('HLEN', KEYS[k + 1])
  local state = redis.call('HMGET', KEYS[k + 2], 'first_at', 'batch_first_at', 'hits',
    'hits_before', 'refused')
  local first_at = now
  if waiting > 0 then first_at = math.min(first_at, state[1] or now) end
  if cut > 0 then first_at = math.min(first_at, state[2] or now) end
  reply[#reply + 1] = waiting + cut
  reply[#reply + 1] = waiting + cut > 0 and now - first_at or ''
  reply[#reply + 1] = (tonumber(state[3]) or 0) + (tonumber(state[4]) or 0)
  reply[#reply + 1] = tonumber(state[5]) or 0
  reply[#reply + 1] = waiting
  local remembered = 0
  for i = k + 3, k + 4 do
    remembered = remembered + redis.call('HLEN', KEYS[i])
    for _, field in ipairs(redis.call('HMGET', KEYS[i], '=now', '=before', '=began_at', '=tag')) do
      if field then remembered = remembered - 1 end
    end
  end
  reply[#reply + 1] = remembered
end
return reply
