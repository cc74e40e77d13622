# frozen_string_literal: true

class Counterfoil
  module Rails
    # Counts the rows of a model in a counter of their parent when they are committed.
    #
    #   class Save < ApplicationRecord
    #     belongs_to :product
    #     counts :saves, on: :product
    #     counts :paid, on: :product, if: :paid?           # rows that meet a condition
    #     counts :points, on: :product, sum: :points       # the sum of an integer column
    #   end
    #
    # Each destroy, and each change of a column that matters, first reads the row `FOR UPDATE`. So the counts follow the rows of the
    # database also if several requests move or destroy the same row at once. Statements that skip callbacks (`delete`, `update_all`,
    # `insert_all`, `update_columns`, a cascade of the database) do not count, and a crash between commit and count loses the count.
    # The recount in counterfoil.toml corrects both.
    module Rows
      # A declaration of a model.
      Count = Struct.new(:association, :name, :condition, :sum, :family_name) do
        def family = family_name || "#{association.klass.model_name.singular}_#{name}"

        # @return [Array<String>]
        def columns = [*association.foreign_key, *sum].map(&:to_s)

        # @return [Hash] the parent's id with the number that the row counts there; empty if it does not count
        def of(row)
          id = Array(association.foreign_key).map { |column| row[column] }
          id.all? && counts?(row) ? { id.join("/") => sum ? row[sum] || 0 : 1 } : {}
        end

        private

        def counts?(row)
          return !condition || row.send(condition) unless condition.is_a?(Proc)

          condition.arity.zero? ? row.instance_exec(&condition) : condition.call(row)
        end
      end
      private_constant :Count

      # @param name [Symbol] of the counter
      # @param on [Symbol] a `belongs_to` of the model
      # @param if [Symbol, Proc] a condition of the row's own columns
      # @param sum [Symbol] an integer column
      # @param family [String] by default `PARENT_NAME`, as `product_saves`
      def counts(name, on:, if: nil, sum: nil, family: nil)
        association = reflect_on_association(on)
        is_known = association&.belongs_to? && !association.polymorphic?
        raise ArgumentError, "#{self}: counts :#{name} needs belongs_to :#{on} above it, not polymorphic" unless is_known

        unless include?(Counted)
          class_attribute(:counterfoil_counts, default: [], instance_accessor: false)
          include Counted
          set_callback(:create, :after, :count_created) # without `prepend` it runs before the other callbacks, which may save again
        end
        self.counterfoil_counts += [Count.new(association, name, binding.local_variable_get(:if), sum, family)]
      end

      # Overrides the methods that Rails' counter caches and optimistic locking override, to see each row as it is written.
      module Counted
        private

        def count_created = count_change(self.class.counterfoil_counts, {}, self)

        def _update_row(names, *)
          counts = self.class.counterfoil_counts.select { |count| count.condition || (count.columns & names).any? }
          with_locked_row(counts) { |row| super.tap { names.each { |name| row[name] = self[name] } if row } }
        end

        def destroy_row = with_locked_row(self.class.counterfoil_counts, is_deleted: true) { super }

        # Yields the row as the database has it, or nil if there is none, or nothing to count.
        def with_locked_row(counts, is_deleted: false)
          key = Array(self.class.primary_key).zip(Array(id_in_database)).to_h
          row = self.class.base_class.unscoped.lock.find_by(key) if counts.any?
          return yield unless row

          before = counts.to_h { |count| [count, count.of(row)] }
          yield(row).tap { count_change(counts, before, (row unless is_deleted)) }
        end

        def count_change(counts, before, row)
          changes = self.class.connection_pool.with_connection { |connection| Changes.of(connection) }
          counts.each do |count|
            before[count]&.each { |id, number| changes.add(count.family, id, -number) }
            count.of(row).each { |id, number| changes.add(count.family, id, number) } if row
          end
        end
      end

      # The changes of a transaction. To Active Record it is one of the transaction's records: it is handed on to the outer
      # transaction, dropped with a savepoint that is rolled back, and committed in the end, even if a callback of another record raises.
      class Changes
        OPEN = ObjectSpace::WeakMap.new # by transaction
        private_constant :OPEN

        def self.of(connection)
          transaction = connection.current_transaction
          OPEN[transaction] ||= new.tap { |changes| connection.add_transaction_record(changes) }
        end

        def initialize = @sums = Hash.new { |sums, family| sums[family] = Hash.new(0) }

        def add(family, id, delta) = @sums[family][id] += delta

        # Counts the net changes: one call for each family.
        def committed!(**)
          @sums.each do |family, sums|
            counters, sums = Counterfoil.client.buffered(family), sums.reject { |_, delta| delta.zero? }.to_a
            results = sums.empty? ? [] : counters.add_many(sums)
            results.zip(sums) { |result, sum| Rails.settle(result, counters, *sum) if result.is_a?(Error) }
          rescue StandardError => error
            sums.each { |sum| Rails.log(error, family, *sum) }
          end
        end

        def before_committed!(*) = nil
        def rolledback!(**) = nil
        def has_transactional_callbacks? = true # rubocop:disable Naming/PredicateName
        def trigger_transactional_callbacks? = true
      end
      private_constant :Changes
    end
  end
end
