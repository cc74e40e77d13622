# frozen_string_literal: true

class Counterfoil
  # What buffered and cached counters share: calls with many pairs of an id and a change, each with its own result.
  # A subclass defines `add_group(args, items)`, `each_word(reply, items)`, `result(word)` and
  # `set_repeated(words, items)`.
  class Counters
    LIMIT = GroupCommit::LIMIT
    # A pair; `result` is an Integer, nil, or an error.
    Item = Struct.new(:partition, :id, :change, :result)
    private_constant :LIMIT, :Item

    # @param script [String] its name
    # @param key_names [Array<String>] of each partition
    def initialize(family, script, key_names)
      @family = family
      @script = script
      @key_names = key_names
      @keys = Hash.new { |keys, partition| keys[partition] = family.keys(partition, *key_names).freeze }
      @groups = Hash.new { |groups, home| groups[home] = GroupCommit.new(->(items) { prepare(home, items) }, method(:perform)) }
      @mutex = Mutex.new
    end

    # @return [String] `NAMESPACE/FAMILY`
    def name = @family.name

    private

    # Counts pairs in as few calls as possible. Pairs, and the calls of a cluster, fail separately.
    #
    # @return [Array<Object>] the result or the error of each pair, in their order
    def count_all(pairs)
      @family.partitions
      items = pairs.map { |id, change| valid_item(id, change) }
      items.grep(Item).group_by { |item| @family.home(item.partition) }.each do |home, members|
        members.each_slice(LIMIT) { |slice| deliver(home, slice) }
      end
      items.map { |item| item.is_a?(Item) ? item.result : item }
    rescue Error => error # there is no epoch
      pairs.map { error }
    end

    # Counts one pair, in a call with those of other threads.
    def count_one(id, change)
      item = item(id, change)
      home = @family.home(item.partition)
      (@groups.fetch(home, nil) || @mutex.synchronize { @groups[home] }).call(item)
      item.result.is_a?(Error) ? raise(item.result) : item.result
    end

    def deliver(home, items)
      perform(prepare(home, items), items)
    rescue Error => error
      items.each { |item| item.result = error }
    end

    # Orders the items by partition, as the reply is.
    #
    # @return [Family::Call]
    def prepare(home, items)
      return call_of(home, @keys[items[0].partition], add_group(call_args, items)) if items.size == 1

      keys = []
      args = call_args
      items.sort_by!(&:partition).chunk_while { |a, b| a.partition == b.partition }.each do |members|
        keys.concat(@keys[members[0].partition])
        add_group(args, members)
      end
      call_of(home, keys, args)
    end

    def call_of(home, keys, args) = @family.call(@script, home, keys, args)

    def perform(call, items) = set_results(@family.count(call), items)

    def set_results(reply, items)
      return set_repeated(reply[1], items) if reply[0] == "DUP"

      each_word(reply, items) { |item, word| item.result = result(word) }
    end

    def item(id, change)
      id = @family.text(id)
      Item.new(@family.partition(id), id, change(change))
    end

    def valid_item(id, change)
      item(id, change)
    rescue Error => error
      error
    end

    def call_args = []
  end
end
