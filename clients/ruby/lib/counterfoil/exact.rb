# frozen_string_literal: true

class Counterfoil
  # Reads exact values: from the daemon, or from Redis and the database (lua/README.md, "Reading the exact value").
  class Exact
    ROUNDS = 20
    # What a partition has pending of an id.
    Pending = Struct.new(:incarnation, :seq, :nonce, :in_flight, :batch, :buffer)
    # The last batch of a partition in the database; `position` is the last id of it that was applied, nil if all were.
    Ledger = Struct.new(:seq, :nonce, :position)
    private_constant(*constants(false))

    # @param database [Mysql2::Client, #call, nil] a callable receives SQL with `?` and its parameters, and returns rows
    # @param table [Array(String, String, String), nil] the application's table, its column of ids, and that of values
    def initialize(daemon, database, table)
      @daemon, @database = daemon, database
      @values, id, @value = (table || %w[counterfoil_values id value]).map { |name| "`#{name.to_s.gsub(".", "`.`")}`" }
      @match = "v.#{id} = ?#{" AND v.family = f.number" unless table}"
      @is_own = table.nil?
    end

    # @return [Integer]
    def value(family, id)
      raise Misconfigured.new("value", "needs the option `daemon` or `database`") unless @database || @daemon
      return @daemon.value(family, id) unless @database
      raise Misconfigured.new("value", "needs `table`: #{family.name} is in a table of yours") if @is_own && family.settings["table"]

      ROUNDS.times { try(family, id)&.then { |value| return value } }
      raise NotCounted.new("value", "Redis was set back", temporary: true)
    end

    private

    # @return [Integer, nil] nil if a batch landed between the two reads
    def try(family, id)
      partitions = family.settings["wide"] ? [*0...family.partitions] : [family.partition(id)]
      pending = partitions.to_h { |partition| [partition, pending(family, partition, id)] }
      value, ledgers = query(family, id, pending)
      parts = pending.map do |partition, one|
        ledger = ledgers[partition] || Ledger.new(0, nil, nil)
        # a crash may have reverted an incarnation of which the ledger has no batch
        is_new = ledger.seq == 0 && (one.batch != 0 || one.buffer != 0)
        beyond(one, ledger, id) unless is_new && pending(family, partition, id).incarnation != one.incarnation
      end
      value + parts.sum if parts.all?
    end

    def pending(family, partition, id)
      _, *words = family.read("buffered_read", family.keys(partition, "buffer", "batch", "meta"), [id])
      Pending.new(words[0].hex, Integer(words[1]), words[2].hex, words[3] == 1, Integer(words[4]), Integer(words[5]))
    end

    # Reads the value and the ledger of each partition, in one statement, so that all is of one moment.
    def query(family, id, pending)
      rows = execute(<<~SQL, [id, *pending.flat_map { |partition, one| [partition, one.incarnation] }, family.namespace, family.family])
        SELECT COALESCE(v.#{@value}, 0) AS value, l.partition_no, l.seq, l.nonce, l.position, f.database_id
        FROM counterfoil_families f
        LEFT JOIN #{@values} v ON #{@match}
        LEFT JOIN counterfoil_ledger l
          ON l.family = f.number AND (l.partition_no, l.incarnation) IN (#{["(?, ?)"].*(pending.size).join(", ")})
        WHERE f.namespace = ? AND f.name = ?
      SQL
      raise Misconfigured.new("value", "#{family.name} is not in this database") if rows.empty?

      family.check_database(rows[0][5])
      ledgers = rows.select { |row| row[1] }.to_h { |row| [row[1], Ledger.new(*row[2, 3])] }
      [Integer(rows[0][0]), ledgers]
    end

    def execute(sql, parameters)
      return values(@database.call(sql, parameters)) if @database.respond_to?(:call)

      statement = @database.prepare(sql)
      values(statement.execute(*parameters))
    rescue StandardError => error
      raise NotCounted.new("database", error.message, temporary: true)
    ensure
      statement&.close
    end

    def values(rows) = rows.map { |row| row.is_a?(Hash) ? row.values : row }

    # @return [Integer, nil] what is pending beyond the row; nil if a newer batch landed
    def beyond(one, ledger, id)
      all = one.batch + one.buffer
      return nil if ledger.seq > one.seq
      raise NotCounted.new("value", "Redis was set back", temporary: true) if ledger.seq == one.seq && one.seq != 0 && ledger.nonce != one.nonce
      return one.buffer if ledger.seq == one.seq && ledger.position.nil?
      return ledger.position.b >= id.b ? one.buffer : all if ledger.seq == one.seq && one.in_flight
      return all if ledger.seq == one.seq - 1 && ledger.position.nil? && one.in_flight

      raise NotCounted.new("value", "this copy of the database is behind: read from the primary", temporary: true)
    end
  end
end
