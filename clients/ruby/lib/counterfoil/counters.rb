# frozen_string_literal: true

class Counterfoil
  # What buffered and cached counters share: calls of pairs of an id and a change, each with its own result. A subclass
  # defines `change(change)`, `add_group(args, items)`, `slots(items)`, `result(word)` and `set_repeated(words, items)`.
  class Counters
    # A pair; `result` is an Integer, nil, or an error.
    Item = Struct.new(:partition, :id, :change, :result)
    private_constant :Item

    # @param key_names [Array<String>] of each partition
    def initialize(family, script, key_names, exact)
      @family, @script, @exact, @mutex = family, script, exact, Mutex.new
      @keys = Hash.new { |keys, partition| keys[partition] = family.keys(partition, *key_names).freeze }
      @commits = Hash.new { |commits, home| commits[home] = GroupCommit.new(->(items) { prepare(home, items) }, method(:perform)) }
    end

    # @return [String] `NAMESPACE/FAMILY`
    def name = @family.name

    # Returns the exact value: what MySQL holds and what is pending.
    #
    # @return [Integer]
    def value(id) = @exact.value(@family, @family.text(id))

    private

    # Counts pairs in as few calls as possible. Pairs, and the calls of a cluster, fail separately.
    #
    # @return [Array<Object>] the result or the error of each pair, in their order
    def count_all(pairs)
      @family.partitions
      items = pairs.map { |id, change| or_error { item(id, change) } }
      items.grep(Item).group_by { |item| @family.home(item.partition) }.each do |home, members|
        members.each_slice(GroupCommit::LIMIT) do |slice|
          error = or_error { perform(prepare(home, slice), slice) }
          slice.each { |item| item.result = error } if error.is_a?(Error)
        end
      end
      items.map { |item| item.is_a?(Item) ? item.result : item }
    rescue Error => error # there is no epoch
      pairs.map { error }
    end

    # Counts one pair, in a call with those of other threads.
    def count_one(id, change)
      item = item(id, change)
      home = @family.home(item.partition)
      (@commits.fetch(home, nil) || @mutex.synchronize { @commits[home] }).call(item)
      result_of(item)
    end

    # Orders the items by partition, as the reply will be.
    def prepare(home, items)
      items.sort_by!(&:partition) if items.size > 1
      args = call_args
      keys = groups(items).flat_map do |members|
        add_group(args, members)
        @keys[members[0].partition]
      end
      @family.call(@script, home, keys, args)
    end

    def perform(call, items) = set_results(@family.count(call), items)

    def set_results((status, *words), items)
      return set_repeated(words[0], items) if status == "DUP"

      slots(items).zip(words) { |item, word| item.result = result(word) if item }
      nil
    end

    def groups(items) = items.size == 1 ? [items] : items.chunk_while { |a, b| a.partition == b.partition }

    def item(id, change)
      id = @family.text(id)
      Item.new(partition(id), id, change(change))
    end

    def partition(id) = @family.partition(id)

    def result_of(item) = item.result.is_a?(Error) ? raise(item.result) : item.result

    def or_error
      yield
    rescue Error => error
      error
    end

    def call_args = []
  end
end
