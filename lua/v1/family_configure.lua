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
--   1 salt          string    random; incarnations are made of it and the time; "" to write only
--                             where the family is configured already
--   2 now_ms        integer   "" for the server's clock; anything else is for tests
--   3 kind          word      buffered, cached, series, activity or visitors
--   4 partitions    integer   how many the family has, 1 or more
--   5 database      string    id of the database that the family's hits go to; "" where it is
--                             unknown yet
--   6 description   json      what a client needs to know of the family, as family_epoch returns
--                             it; up to 65536 bytes
--   7 name, value   settings  what the scripts read, and `registered`: all settings, as JSON, with
--                             which the database has the family; 32 at most; the name: [a-z_]+,
--                             other than those above; a former setting that is not among them is
--                             removed
-- REPLIES
--   {"OK"}                    written; where kind or number of partitions were others before, or
--                             the family has no such partition, its epochs have ended: callers ask
--                             for a new one, and are refused where they are configured differently
--   {"MISMATCH", database}    the family belongs to another database; nothing done
--   {"UNCONFIGURED"}          without a salt: Redis has no settings of the family, or a partition
--                             has no incarnation; nothing done
-- ERRORS
--   BADARG                    an argument is missing or wrong; nothing done
-- REPEAT  safe
-- SINCE   0.1.0
-- CALLER  Partition::write_settings in src/scripts/partition/settings.rs
-- VECTORS lua/vectors/family_configure.json

local kinds = { buffered = true, cached = true, series = true, activity = true, visitors = true }
local calls, salt, test_ms, kind, partitions = KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local named_database, description = ARGV[5], ARGV[6]
local home = (calls or ''):match('/(%d+)}:calls$')
local fits = #KEYS >= 2 and home and #ARGV >= 6 and #ARGV <= 70 and #ARGV % 2 == 0
fits = fits and kinds[kind] and partitions:find('^[1-9]%d*$') and #description <= 65536
local is_setting, settings, values = {}, {}, {}
for i = 7, fits and #ARGV or 0, 2 do
  local name, value = ARGV[i], ARGV[i + 1]
  fits = fits and name:find('^[a-z_]+$')
  is_setting[name] = true
  settings[#settings + 1] = name
  values[#values + 1], values[#values + 2] = '=' .. name, value
end
if not fits then
  return redis.error_reply('BADARG expected calls and meta of each partition; salt, now_ms, kind, '
    .. 'partitions, database, description, and names and values of settings')
end

-- check that the family belongs to this database
local time = test_ms == '' and redis.call('TIME') or { '0', test_ms .. '000' }
local known = redis.call('HMGET', calls, '=kind', '=partitions', '=database', '=settings',
  '=refused')
local known_kind, known_partitions, known_database, known_settings, is_refused = unpack(known)
local database = named_database ~= '' and named_database or known_database or ''
local function is_foreign(owner) return owner and owner ~= '' and owner ~= database end
if is_foreign(known_database) then return { 'MISMATCH', known_database } end -- guard: Database

-- check that its partitions do, and find those without an incarnation
local without, owner = {}, nil
for i = 2, #KEYS do
  local meta = KEYS[i]
  local incarnation, its_database = unpack(redis.call('HMGET', meta, 'incarnation', 'database'))
  if not incarnation then without[#without + 1] = meta end
  if database ~= '' and is_foreign(its_database) then owner = its_database end
end
if owner then return { 'MISMATCH', owner } end -- guard: Database
if salt == '' and (not known_kind or #without > 0) then return { 'UNCONFIGURED' } end

-- Give each partition its incarnation. This comes before the settings, without which Redis issues
-- no epoch, and so before anything is counted: by its incarnation a batch is known to be from
-- before Redis was set back.
for _, meta in ipairs(without) do
  local incarnation = redis.sha1hex(table.concat({ meta, salt, time[1], time[2] }, ' ')):sub(1, 16)
  redis.call('HSET', meta, 'incarnation', incarnation) -- guard: Incarnation
end
for i = 2, database ~= '' and #KEYS or 0 do redis.call('HSET', KEYS[i], 'database', database) end

-- end the epochs where the family is another one than before
local is_other = known_kind and (known_kind ~= kind or known_partitions ~= partitions)
if is_other or tonumber(home) >= tonumber(partitions) then
  redis.call('HDEL', calls, '=now', '=before', '=began_at')
end

-- write the settings in place of the former ones
for name in (known_settings or ''):gmatch('%S+') do
  if not is_setting[name] then redis.call('HDEL', calls, '=' .. name) end
end
-- family_refuse gave the key an expiry, which ends with the key
if is_refused then redis.call('UNLINK', calls) end
redis.call('HSET', calls, '=kind', kind, '=partitions', partitions, '=database', database,
  '=description', description, '=settings', table.concat(settings, ' '), unpack(values))
return { 'OK' }
