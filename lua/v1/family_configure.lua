-- family_configure, revision 1
-- Writes a family's settings beside its epoch, and gives its partitions their incarnations.
--
-- KEYS
--   1 calls         hash      of a home partition: caller -> its last call; =kind, =partitions,
--                             =database, =description, =now, =before, =began_at; =settings, the
--                             names of the settings, separated by spaces; and each setting, such as
--                             =max_pending
--   2 meta          hash      incarnation, database; of each partition whose calls have this home:
--                             all of the family's on a single server, the home's own in a cluster
-- ARGV
--   1 salt          string    random; incarnations are made of it and the time
--   2 now_ms        integer   "" for the server's clock; anything else is for tests
--   3 kind          word      buffered, cached, series, activity or visitors
--   4 partitions    integer   how many the family has, 1 or more
--   5 database      string    id of the database that the family's hits go to; "" where it is
--                             unknown yet
--   6 description   json      what a client needs to know of the family, as family_epoch returns
--                             it; up to 65536 bytes
--   7 name, value   settings  what the scripts read, 32 at most; the name: [a-z_]+, other than
--                             those above; a former setting that is not among them is removed
-- REPLIES
--   {"OK"}                    written; where kind or number of partitions were others before, or
--                             the family has no such partition, its epochs have ended: callers ask
--                             for a new one, and are refused where they are configured differently
--   {"MISMATCH", database}    the family belongs to another database; nothing done
-- ERRORS
--   BADARG                    an argument is missing or wrong; nothing done
-- REPEAT  safe
-- SINCE   0.1.0

local kinds = { buffered = true, cached = true, series = true, activity = true, visitors = true }
local calls, salt, kind, partitions = KEYS[1], ARGV[1], ARGV[3], ARGV[4]
local is_number, home = '^[1-9]%d*$', (calls or ''):match('/(%d+)}:calls$')
local fits = #KEYS >= 2 and home and #ARGV >= 6 and #ARGV <= 70 and #ARGV % 2 == 0 and salt ~= ''
fits = fits and kinds[kind] and partitions:find(is_number) and #ARGV[6] <= 65536
local is_setting, settings, values = {}, {}, {}
for i = 7, fits and #ARGV or 0, 2 do
  fits = fits and ARGV[i]:find('^[a-z_]+$')
  is_setting[ARGV[i]] = true
  settings[#settings + 1] = ARGV[i]
  values[#values + 1], values[#values + 2] = '=' .. ARGV[i], ARGV[i + 1]
end
if not fits then
  return redis.error_reply('BADARG expected calls and meta of each partition; salt, now_ms, kind, '
    .. 'partitions, database, description, and names and values of settings')
end

local time = ARGV[2] == '' and redis.call('TIME') or { '0', ARGV[2] .. '000' }
local known = redis.call('HMGET', calls, '=kind', '=partitions', '=database', '=settings',
  '=refused')
local known_kind, known_partitions, known_database, known_settings, is_refused = unpack(known)
local database = ARGV[5] ~= '' and ARGV[5] or known_database or ''
local function is_foreign(owner) return owner and owner ~= '' and owner ~= database end
if is_foreign(known_database) then return { 'MISMATCH', known_database } end -- guard: Database
local is_other = known_kind and (known_kind ~= kind or known_partitions ~= partitions)
-- before an epoch is issued: a batch of a Redis that was set back is then told from one of another
-- incarnation
local without, owner = {}, nil
for i = 2, #KEYS do
  local known_meta = redis.call('HMGET', KEYS[i], 'incarnation', 'database')
  if not known_meta[1] then without[#without + 1] = KEYS[i] end
  if database ~= '' and is_foreign(known_meta[2]) then owner = known_meta[2] end
end
if owner then return { 'MISMATCH', owner } end -- guard: Database
for _, meta in ipairs(without) do
  local incarnation = redis.sha1hex(table.concat({ meta, salt, time[1], time[2] }, ' ')):sub(1, 16)
  redis.call('HSET', meta, 'incarnation', incarnation) -- guard: Incarnation
end
for i = 2, database ~= '' and #KEYS or 0 do redis.call('HSET', KEYS[i], 'database', database) end
if is_other or tonumber(home) >= tonumber(partitions) then
  redis.call('HDEL', calls, '=now', '=before', '=began_at')
end
for name in (known_settings or ''):gmatch('%S+') do
  if not is_setting[name] then redis.call('HDEL', calls, '=' .. name) end
end
-- with the expiry
if is_refused then redis.call('UNLINK', calls) end
redis.call('HSET', calls, '=kind', kind, '=partitions', partitions, '=database', database,
  '=description', ARGV[6], '=settings', table.concat(settings, ' '), unpack(values))
return { 'OK' }
