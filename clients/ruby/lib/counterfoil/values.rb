# frozen_string_literal: true

class Counterfoil
  # Exact values: what MySQL holds and what is pending. A class defines `row_id`, the id of a row.
  module Values
    NONE = Object.new.freeze
    private_constant :NONE

    # Returns the exact value.
    #
    #   views.value("product-1")
    #   views.value("product-1", 0)
    #   views.value(product.id) { |error| product.views }
    #
    # @param id what the calls that count take
    # @param default [Integer] instead of a value that does not arrive in time
    # @yieldparam error [NotCounted] why it does not
    # @yieldreturn [Integer] the default
    # @return [Integer]
    def value(id, default = NONE, &block) = values([id], default, &block)[0]

    # Returns the exact values of many: a request for 1,000 of them.
    #
    # @param ids [Enumerable]
    # @param default [Integer, Array<Integer>] instead of values that do not arrive in time: one for all, or one for each
    # @yieldparam error [NotCounted] why they do not
    # @yieldreturn [Integer, Array<Integer>] the default
    # @return [Array<Integer>] in the order of the ids
    def values(ids, default = NONE)
      ids = ids.to_a
      @family.reading { @daemons.values(@family, ids.map { |id| row_id(id) }) }
    rescue NotCounted => error
      raise unless error.temporary? && (block_given? || default != NONE)

      default = yield(error) if block_given?
      default.is_a?(Array) ? default : Array.new(ids.size, default)
    end
  end
end
