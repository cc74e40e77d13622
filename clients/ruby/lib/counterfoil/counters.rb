# frozen_string_literal: true

class Counterfoil
  # What buffered and cached counters share: calls with many pairs of an id and a change, each with its own result.
  class Counters
    LIMIT = 1000
    Item = Struct.new(:partition, :id, :change)
    private_constant :LIMIT, :Item

    # @param script [String] its name
    # @param key_names [Array<String>] of each partition
    def initialize(family, script, key_names)
      @family = family
      @script = script
      @key_names = key_names
    end

    # @return [String] `NAMESPACE/FAMILY`
    def name = @family.name

    private

    # Counts pairs in as few calls as possible. Pairs, and the calls of a cluster, fail separately.
    #
    # @return [Array<Object>] the result or the error of each pair, in their order
    def count_all(pairs)
      @family.partitions
      items = pairs.map { |id, change| valid { item(id, change) } }
      results = items.dup
      items.each_index.reject { |i| items[i].is_a?(Error) }.group_by { |i| @family.home(items[i].partition) }.each do |home, all|
        all.each_slice(LIMIT) do |indexes|
          slice = items.values_at(*indexes)
          indexes.zip(valid { deliver(home, slice) }.then { |found| found.is_a?(Error) ? [found] * slice.size : found })
                 .each { |i, result| results[i] = result }
        end
      end
      results
    rescue Error => error # there is no epoch
      pairs.map { error }
    end

    # Counts one pair.
    def count_one(id, change)
      item = item(id, change)
      result = deliver(@family.home(item.partition), [item])[0]
      result.is_a?(Error) ? raise(result) : result
    end

    def deliver(home, items)
      groups = items.each_index.group_by { |i| items[i].partition }
      keys = groups.keys.flat_map { |partition| @family.keys(partition, *@key_names) }
      args = groups.values.flat_map { |indexes| group_args(items.values_at(*indexes)) }
      reply = @family.count(@script, home, keys, [*call_args, *args])
      results = reply[0] == "DUP" ? repeated(reply[1], items.size) : words(reply, groups).map { |word| result(word) }
      groups.values.flatten.zip(results).sort_by(&:first).map(&:last)
    end

    def item(id, change)
      id = @family.text(id)
      Item.new(@family.partition(id), id, change(change))
    end

    def valid
      yield
    rescue Error => error
      error
    end

    def call_args = []
  end
end
