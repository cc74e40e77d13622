-- counterfoil's own tables (docs/protocol.md, sections 2 to 4). Every statement may be run again.
-- Names and ids are VARBINARY: compared byte by byte, so that no collation folds `a` into `A` or drops a trailing space.
-- The engine is InnoDB, because ledger and values change in one transaction.

-- The families, each with the configuration that all processes share, all settings of the process that opened it last, and
-- the random id of the database of its hits. Redis refuses a process with another database. `state` is `used`,
-- `removing` while the family's rows are deleted, or `removed`. Then its number and its ledger stay, and a family that is
-- registered under its name takes them over, so that no batch from before the removal counts again.
CREATE TABLE IF NOT EXISTS counterfoil_families (
  number INT UNSIGNED NOT NULL AUTO_INCREMENT,
  namespace VARBINARY(64) NOT NULL,
  name VARBINARY(64) NOT NULL,
  kind VARCHAR(32) NOT NULL,
  partitions INT UNSIGNED NOT NULL,
  wide VARCHAR(5) NOT NULL,
  durability VARCHAR(64) NOT NULL,
  target TEXT NOT NULL,
  shape VARCHAR(512) NOT NULL,
  settings TEXT NOT NULL,
  database_id VARCHAR(64) NOT NULL,
  state VARCHAR(8) NOT NULL DEFAULT 'used',
  created_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,
  PRIMARY KEY (number),
  UNIQUE KEY family (namespace, name)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- The value of each counter whose family has no table of the application's.
CREATE TABLE IF NOT EXISTS counterfoil_values (
  family INT UNSIGNED NOT NULL,
  id VARBINARY(255) NOT NULL,
  value BIGINT NOT NULL,
  PRIMARY KEY (family, id)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- The last batch of each partition and incarnation, by its sequence number and nonce, and the last of its ids that was
-- added: NULL once all of them are. `lost_batches` were complete before the database was set back, and `dropped_hits` of
-- `dropped_ids` waited in a Redis that was set back. The times are NULL once an operator has acknowledged them.
CREATE TABLE IF NOT EXISTS counterfoil_ledger (
  family INT UNSIGNED NOT NULL,
  partition_no INT UNSIGNED NOT NULL,
  incarnation BIGINT UNSIGNED NOT NULL,
  seq BIGINT UNSIGNED NOT NULL,
  nonce BIGINT UNSIGNED NOT NULL,
  position VARBINARY(255) NULL DEFAULT NULL,
  applied_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,
  lost_batches BIGINT UNSIGNED NOT NULL DEFAULT 0,
  lost_at TIMESTAMP NULL DEFAULT NULL,
  dropped_hits BIGINT UNSIGNED NOT NULL DEFAULT 0,
  dropped_ids BIGINT UNSIGNED NOT NULL DEFAULT 0,
  dropped_at TIMESTAMP NULL DEFAULT NULL,
  PRIMARY KEY (family, partition_no, incarnation),
  KEY lost (lost_at),
  KEY dropped (dropped_at)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- The sum of the deltas of an id that the database refused, with the last reason. A row is deleted when its counter's row
-- takes the sum, or when it is discarded. `retry_at` is NULL if no row can ever have the id. An id of more than 255 bytes is
-- cut, and ends in a byte that is not UTF-8.
CREATE TABLE IF NOT EXISTS counterfoil_rejects (
  family INT UNSIGNED NOT NULL,
  id VARBINARY(255) NOT NULL,
  delta DECIMAL(40) NOT NULL,
  reason VARCHAR(1024) NOT NULL,
  first_at TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3),
  last_at TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3),
  retries INT UNSIGNED NOT NULL DEFAULT 0,
  retry_at TIMESTAMP(3) NULL DEFAULT NULL,
  PRIMARY KEY (family, id),
  KEY due (family, retry_at),
  KEY newest (first_at)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- The runs of recounts, each family's numbered from 1: who works on it, how far it came, and when. A run without a holder may
-- be taken over, and so may one that was not touched for long.
CREATE TABLE IF NOT EXISTS counterfoil_recounts (
  family INT UNSIGNED NOT NULL,
  run BIGINT UNSIGNED NOT NULL,
  holder BIGINT UNSIGNED NOT NULL,
  from_source TINYINT UNSIGNED NOT NULL DEFAULT 0,
  last_id VARBINARY(255) DEFAULT NULL,
  checked BIGINT UNSIGNED NOT NULL DEFAULT 0,
  drifted BIGINT UNSIGNED NOT NULL DEFAULT 0,
  started_at TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3),
  touched_at TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3),
  finished_at TIMESTAMP(3) NULL DEFAULT NULL,
  PRIMARY KEY (family, run)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Drift that recounts found: the counter before and after its rows were counted, the rows, and the delta that was added: 0
-- where the note gives the reason why nothing was. A row of zeros notes that rejects of the id were added or discarded during
-- the run, which then leaves the id to the next one.
CREATE TABLE IF NOT EXISTS counterfoil_drift (
  family INT UNSIGNED NOT NULL,
  run BIGINT UNSIGNED NOT NULL,
  id VARBINARY(255) NOT NULL,
  value_before BIGINT NOT NULL,
  row_count BIGINT NOT NULL,
  value_after BIGINT NOT NULL,
  delta BIGINT NOT NULL,
  note VARCHAR(1024) NOT NULL,
  found_at TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3),
  PRIMARY KEY (family, run, id)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
