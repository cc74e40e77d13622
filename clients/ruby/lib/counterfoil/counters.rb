# frozen_string_literal: true

class Counterfoil
  # What buffered and cached counters share: calls of pairs of an id and a change, each with its own result. A subclass
  # defines `change(change)`, `add_group(args, items)`, `set_counted(words, items)`, `set_repeated(word, items)` and `result(word)`.
  class Counters
    # A pair; `of` is how many partitions there are, `result` is an Integer, nil, or an error.
    Item = Struct.new(:partition, :of, :id, :change, :result)
    private_constant :Item

    # @param key_names [Array<String>] of each partition
    def initialize(family, script, key_names, daemons)
      @family, @script, @daemons, @mutex, @commits = family, script, daemons, Lock.new, {}
      @keys = Hash.new { |keys, partition| keys[partition] = family.keys(partition, *key_names).freeze }
    end

    # @return [String] `NAMESPACE/FAMILY`
    def name = @family.name

    # Returns the exact value: what MySQL holds and what is pending.
    #
    # @return [Integer]
    def value(id) = values([id])[0]

    # Returns the exact values of many counters: a request for 1,000 of them.
    #
    # @param ids [Enumerable<String, Symbol, Integer>]
    # @return [Array<Integer>] in the order of the ids
    def values(ids) = @daemons.values(@family, ids.map { |id| @family.text(id) })

    private

    # Counts pairs in as few calls as possible. Pairs, and the calls of a cluster, fail separately.
    #
    # @return [Array<Object>] the result or the error of each pair, in their order
    def count_all(pairs)
      @family.partitions
      items = pairs.map { |id, change| item_or_error(id, change) }
      items.grep(Item).group_by { |item| [@family.home(item.partition), item.of] }.each do |(home, *), members|
        members.each_slice(GroupCommit::LIMIT) { |some| count(home, GroupCommit::Batch.new(some)) }
      end
      items.map { |item| item.is_a?(Item) ? item.result : item }
    rescue Error => error # there is no epoch
      pairs.map { error }
    end

    # Counts one pair, in a call with those of other threads.
    def count_one(id, change)
      item = item(id, change)
      commit(@family.home(item.partition), item.of).call(item)
      result_of(item)
    end

    def commit(home, of)
      @commits[[home, of]] || @mutex.synchronize { @commits[[home, of]] ||= GroupCommit.new { |batch| count(home, batch) } }
    end

    def count(home, batch)
      batch.call ||= prepare(home, batch.items)
      set_results(@family.count(batch.call), batch.items)
    rescue Error => error
      batch.items.each { |item| item.result = error }
    end

    # Orders the items by partition, as the reply will be.
    def prepare(home, items)
      items.sort_by!(&:partition) if items.size > 1
      keys, args = [], call_args
      groups(items).each do |members|
        keys.concat(@keys[members[0].partition])
        add_group(args, members)
      end
      @family.call(@script, home, keys, args, items[0].of)
    end

    def set_results((status, *words), items) = status == "DUP" ? set_repeated(words[0], items) : set_counted(words, items)

    def groups(items) = items.size == 1 ? [items] : items.chunk_while { |a, b| a.partition == b.partition }

    def item(id, change)
      id, of = @family.id(id), @family.partitions
      Item.new(partition(id, of), of, id, change(change))
    end

    def item_or_error(id, change)
      item(id, change)
    rescue Error => error
      error
    end

    def partition(id, of) = @family.partition(id, of)

    def result_of(item) = item.result.is_a?(Error) ? raise(item.result) : item.result

    def call_args = []
  end
end
