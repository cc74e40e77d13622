# frozen_string_literal: true

class Counterfoil
  # The base of buffered and cached counters: calls with pairs of an id and a change, each of which has its own result. A subclass
  # defines `change(change)`, `add_group(args, items)`, `set_counted(words, items)`, `set_repeated(word, items)` and `result(word)`.
  class Counters
    include Values

    # A pair. `of` is the number of partitions when its own was chosen. `request` has a name, and the generation that a job has stored
    # or nil. `result` is an Integer, nil, or an error, and `before` is true if the request was counted before.
    Item = Struct.new(:partition, :of, :id, :change, :request, :result, :before)
    private_constant :Item

    # @param key_names [Array<String>] of each partition
    def initialize(family, script, key_names, daemons)
      @family, @script, @daemons, @mutex, @commits = family, script, daemons, Lock.new, {}
      @keys = Hash.new { |keys, partition| keys[partition] = family.keys(partition, *key_names).freeze }
    end

    # @return [String] `NAMESPACE/FAMILY`
    def name = @family.name

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
    def count_one(id, change, request = nil)
      item = item(id, change, request)
      commit(@family.home(item.partition), item.of).call(item)
      yield item if block_given?
      result_of(item)
    end

    # @return [Array(String, String)] a request's checked name, and the epoch that a job has stored or nil
    def request(name, epoch = nil) = [@family.text(name, 64), epoch]

    def commit(home, of)
      @commits[[home, of]] || @mutex.synchronize { @commits[[home, of]] ||= GroupCommit.new { |batch| count(home, batch) } }
    end

    def count(home, batch)
      batch.call ||= prepare(home, batch.items)
      set_results(@family.count(batch.call), batch.items)
      @family.forget(home) if batch.call.requests.any? && batch.items.any? { |item| item.result.is_a?(OutcomeUnknown) }
    rescue Error => error
      batch.items.each { |item| item.result = error }
    end

    # Orders the items by partition, since the words of the reply have this order.
    def prepare(home, items)
      items.sort_by!(&:partition) if items.size > 1
      requests = items.each_with_index.filter_map { |item, i| [i + 1, *item.request] if item.request }
      keys, args = [], [*call_args, requests.size]
      groups(items).each do |members|
        keys.concat(@keys[members[0].partition])
        add_group(args, members)
      end
      @family.call(@script, home, keys, args, items[0].of, requests)
    end

    def set_results((status, *words), items) = status == "DUP" ? set_repeated(words[0], items) : set_counted(words, items)

    def set_result(item, word)
      item.before = word.is_a?(String) && word.start_with?("BEFORE:")
      item.result = if word == "EXPIRED" then OutcomeUnknown.new(word, "Redis may have forgotten the request")
                    else result(item.before ? word.delete_prefix("BEFORE:") : word)
                    end
    end

    def groups(items) = items.size == 1 ? [items] : items.chunk_while { |a, b| a.partition == b.partition }

    def item(id, change, request = nil)
      id, of = @family.id(id), @family.partitions
      Item.new(partition(id, of, request), of, id, change(change), request)
    end

    def item_or_error(id, change)
      item(id, change)
    rescue Error => error
      error
    end

    def partition(id, of, _request) = @family.partition(id, of)

    def result_of(item) = item.result.is_a?(Error) ? raise(item.result) : item.result

    def row_id(id) = @family.text(id)

    def call_args = []
  end
end
