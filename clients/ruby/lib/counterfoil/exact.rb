# frozen_string_literal: true

class Counterfoil
  # Reads exact values: from the daemon, or from Redis and the database (lua/README.md, "Reading the exact value").
  class Exact
    ROUNDS = 20
    # What a partition has pending of an id.
    Pending = Struct.new(:incarnation, :seq, :nonce, :in_flight, :batch, :buffer)
    # The last batch of a partition in the database; `position` is the last id of it that was applied, nil if all were.
    Ledger = Struct.new(:seq, :nonce, :position)
    NO_LEDGER = Ledger.new(0, nil, nil).freeze
    private_constant :ROUNDS, :Pending, :Ledger, :NO_LEDGER

    # @param daemon [Daemon, nil]
    # @param database [Mysql2::Client, #call, nil] a callable receives SQL with `?` and its parameters, and returns rows
    # @param table [Array(String, String, String), nil] the application's table, its column of ids, and that of values
    def initialize(daemon, database, table)
      @daemon = daemon
      @database = database
      @table = table&.map { |name| "`#{name.to_s.gsub("`", "``").gsub(".", "`.`")}`" }
    end

    # @return [Integer]
    def value(family, id)
      return @daemon.value(family, id) if @daemon && !@database
      raise Misconfigured.new("value", "needs the option `daemon` or `database`") unless @database

      ROUNDS.times { try(family, id)&.then { |value| return value } }
      raise NotCounted.new("value", "Redis was set back, or is", temporary: true)
    end

    private

    def try(family, id)
      partitions = family.settings["wide"] ? (0...family.partitions).to_a : [family.partition(id)]
      pending = partitions.to_h { |partition| [partition, pending(family, partition, id)] }
      value, ledgers = rows(family, id, pending)
      sum = pending.sum do |partition, one|
        ledger = ledgers.fetch(partition, NO_LEDGER)
        return nil if reverted?(family, partition, id, one, ledger)

        beyond(one, ledger, id) || (return nil)
      end
      value + sum
    end

    def pending(family, partition, id)
      reply = family.read("buffered_read", family.keys(partition, "buffer", "batch", "meta"), [id])
      _, incarnation, seq, nonce, in_flight, batch, buffer = reply
      Pending.new(incarnation.hex, Integer(seq), nonce.hex, in_flight == 1, Integer(batch), Integer(buffer))
    end

    # one statement, so that all is of one moment
    def rows(family, id, pending)
      value, values = @table ? ["v.#{@table[2]}", "#{@table[0]} v ON v.#{@table[1]} = ?"] :
        ["v.value", "counterfoil_values v ON v.family = f.number AND v.id = ?"]
      pairs = pending.flat_map { |partition, one| [partition, one.incarnation] }
      rows = query(<<~SQL, [id, *pairs, family.namespace, family.family])
        SELECT COALESCE(#{value}, 0) AS value, l.partition_no, l.seq, l.nonce, l.position
        FROM counterfoil_families f
        LEFT JOIN #{values}
        LEFT JOIN counterfoil_ledger l ON l.family = f.number
          AND (l.partition_no, l.incarnation) IN (#{(["(?, ?)"] * pending.size).join(", ")})
        WHERE f.namespace = ? AND f.name = ?
      SQL
      raise Misconfigured.new("value", "#{family.name} is not in this database") if rows.empty?

      ledgers = rows.select { |row| row[1] }.to_h { |row| [Integer(row[1]), Ledger.new(Integer(row[2]), Integer(row[3]), row[4])] }
      [Integer(rows[0][0]), ledgers]
    end

    def query(sql, parameters)
      return @database.call(sql, parameters).map { |row| row.is_a?(Hash) ? row.values : row } unless defined?(Mysql2) && @database.is_a?(Mysql2::Client)

      @database.prepare(sql).execute(*parameters, as: :array).to_a
    end

    # a crash may have reverted an incarnation of which the ledger has no batch
    def reverted?(family, partition, id, one, ledger)
      return false if ledger.seq != 0 || (one.batch.zero? && one.buffer.zero?)

      pending(family, partition, id).incarnation != one.incarnation
    end

    # @return [Integer, nil] what is pending beyond the row; nil if a newer batch landed in between
    def beyond(one, ledger, id)
      all = one.batch + one.buffer
      return nil if ledger.seq > one.seq
      return all if ledger.seq == one.seq - 1 && ledger.position.nil? && one.in_flight

      if ledger.seq == one.seq
        raise NotCounted.new("value", "Redis was set back", temporary: true) if one.seq != 0 && ledger.nonce != one.nonce
        return one.buffer if ledger.position.nil?
        return ledger.position.b >= id.b ? one.buffer : all if one.in_flight
      end
      raise NotCounted.new("value", "this copy of the database is behind: read from the primary", temporary: true)
    end
  end
end
