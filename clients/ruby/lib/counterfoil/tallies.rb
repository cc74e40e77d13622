# frozen_string_literal: true

class Counterfoil
  # The base of series, activity and visitors. A call counts in one partition, and each of its sums is counted or refused by itself.
  # A subclass defines `partition(key, of, settings)` and `entries(home, partition, sums, settings)`.
  class Tallies
    ROUNDS = 5
    private_constant :ROUNDS

    # @param size [Integer] how many sums a call may have
    def initialize(family, script, size, later)
      @family, @script, @size, @later = family, script, size, later
    end

    # @return [String] `NAMESPACE/FAMILY`
    def name = @family.name

    # Sends what `later` of any family took before, for `retry_for` at most.
    #
    # @return [nil]
    # @raise [Error] the first error since the previous flush
    def flush = @later.flush

    # @api private
    # @param sums [Hash]
    # @return [Array<Integer, Error>] for each sum, in their order
    def count_sums(sums)
      results = {}
      @family.counting do
        ROUNDS.times do
          rest = sums.reject { |key, _| results.key?(key) }
          rest.empty? ? break : count_rest(rest, results)
        end
      end
      unsettled = NotCounted.new("MISMATCH", "#{name} changes in Redis too often", temporary: true)
      sums.keys.map { |key| results.fetch(key, unsettled) }
    rescue Error => error # there is no epoch
      sums.map { error }
    end

    # @api private
    # @return [String] the counter of a sum
    def label((id, _)) = id

    private

    def count_one(key, number)
      result = count_sums({ key => number })[0]
      result.is_a?(Error) ? raise(result) : result
    end

    # Reads the settings once, since they may change meanwhile: a call and its partition need the same ones.
    def count_rest(sums, results)
      of, settings, partitions = @family.partitions, @family.settings, Hash.new { |hash, partition| hash[partition] = {} }
      sums.each do |key, number|
        partitions[partition(key, of, settings)][key] = number
      rescue Error => error
        results[key] = error
      end
      partitions.each do |partition, own|
        own.each_slice(@size) { |some| results.merge!(count_call(partition, of, some.to_h, settings)) }
      end
    end

    # @return [Hash] the results; none if the family has changed in Redis
    def count_call(partition, of, sums, settings)
      home = @family.home(partition)
      keys, args, entries = entries(home, partition, sums, settings)
      status, *words = @family.count(@family.call(@script, home, keys, args, of))
      return {}.tap { @family.epoch(home, fresh: true) } if status == "MISMATCH"

      words = status == "OK" ? words.drop(1) : repeated(words, entries.size)
      entries.zip(words).flat_map { |some, word| some.map { |key| [key, result(word)] } }.to_h
    rescue Error => error
      sums.transform_values { error }
    end

    # @return [Array] the words of a call that was executed before: 1, except for those that `refused` names: "3:FULL 7:RANGE", from 1
    def repeated((refused), size)
      words = Array.new(size, 1)
      refused.scan(/(\d+):(\S+)/) { |index, word| words[index.to_i - 1] = word }
      words
    end

    def result(word)
      code = word.to_s[/[A-Z]+/]
      code ? NotCounted.new(code, temporary: code == "NOCALENDAR") : word.to_i
    end
  end
end
