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
-- CALLER  of_partitions in src/admin/backlog.rs
-- VECTORS lua/vectors/buffered_backlog.json

local test_ms = ARGV[1]
if #KEYS < 5 or #KEYS > 1000 or #KEYS % 5 ~= 0 or #ARGV ~= 1 then
  return redis.error_reply('BADARG expected 1 to 200 times buffer, batch, meta, requests, '
    .. 'requests_before; and now_ms')
end
local time = redis.call('TIME')
local now = tonumber(test_ms) or time[1] * 1000 + math.floor(time[2] / 1000)

-- count the requests of a generation: every field but those that are not requests
local function requests_in(memory)
  local count = redis.call('HLEN', memory)
  for _, field in ipairs(redis.call('HMGET', memory, '=now', '=before', '=began_at', '=tag')) do
    if field then count = count - 1 end
  end
  return count
end

local reply = { 'OK' }
for key = 1, #KEYS, 5 do
  local buffer, batch, meta, requests, requests_before = unpack(KEYS, key, key + 4)
  local waiting, cut = redis.call('HLEN', buffer), redis.call('HLEN', batch)
  local first_at, batch_first_at, hits, hits_before, refused = unpack(redis.call('HMGET', meta,
    'first_at', 'batch_first_at', 'hits', 'hits_before', 'refused'))
  -- the oldest hit of buffer and batch
  local oldest_at = now
  if waiting > 0 then oldest_at = math.min(oldest_at, first_at or now) end
  if cut > 0 then oldest_at = math.min(oldest_at, batch_first_at or now) end
  reply[#reply + 1] = waiting + cut
  reply[#reply + 1] = waiting + cut > 0 and now - oldest_at or ''
  reply[#reply + 1] = (tonumber(hits) or 0) + (tonumber(hits_before) or 0)
  reply[#reply + 1] = tonumber(refused) or 0
  reply[#reply + 1] = waiting
  reply[#reply + 1] = requests_in(requests) + requests_in(requests_before)
end
return reply
