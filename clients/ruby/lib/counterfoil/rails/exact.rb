# frozen_string_literal: true

class Counterfoil
  module Rails
    # Exact values of counters. The column has them `sync_time` later, a minute by default.
    #
    #   class Product < ApplicationRecord
    #     has_count :saves # the family product_saves, the column saves_count
    #   end
    #
    #   product.exact_saves_count                     # the column's, if the exact one does not arrive in time
    #   Product.order(:id).with_exact_saves_count     # the products with their exact values, by one request
    #   Product.with_exact_saves_count(products, nil) # nil for values that do not arrive in time
    module Exact
      # Makes the column readonly, since the daemon writes it, and defines `exact_COLUMN` and `with_exact_COLUMN`.
      def has_count(name, column: "#{name}_count", family: "#{model_name.singular}_#{name}") # rubocop:disable Naming/PredicateName
        reader = "exact_#{column}"
        values = lambda do |records, *default|
          columns = ->(_error) { records.pluck(column) } if default.empty?
          Counterfoil.client.buffered(family).values(records.map { |record| Array(record.id).join("/") }, *default, &columns)
        end
        attr_readonly(column)
        include(Known)
        define_method(reader) do |*default|
          new_record? ? self[column] : exact_values.fetch(reader) { values.call([self], *default)[0] }
        end
        define_singleton_method("with_#{reader}") do |records = all, *default|
          records = records.to_a
          records.zip(values.call(records, *default)) { |record, value| record.exact_values[reader] = value }
          records
        end
      end

      # A record's values that `with_exact_COLUMN` has read.
      module Known
        # @api private
        def exact_values = @exact_values ||= {}

        def reload(*) = super.tap { @exact_values = nil }
      end
      private_constant :Known
    end
  end
end
