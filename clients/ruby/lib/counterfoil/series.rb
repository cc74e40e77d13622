# frozen_string_literal: true

class Counterfoil
  # Counts over time, e.g. in each of the last 120 minutes.
  #
  #   hits = counterfoil.series("hits")
  #   hits.add("front")
  #   hits.get("front", "60s").last   #=> [1410134400, 1]
  class Series < Tallies
    CALENDARS = %w[calendar:day calendar:month].freeze
    MAX = 100
    private_constant(*constants(false))

    def initialize(family, later)
      super(family, "series_add", MAX, later)
    end

    # Counts n in the current slice of each window, or in the slices of another time.
    #
    # @param name [String, Symbol, Integer] 1 to 200 bytes of UTF-8
    # @param n [Integer] 1 or more
    # @param at [Time, Numeric, nil] when it happened, or Unix seconds; nil for now
    # @return [nil]
    # @raise [NotCounted, OutcomeUnknown, Misconfigured]
    def add(name, n = 1, at = nil)
      count_one([@family.text(name, 200), millis(at)], @family.integer(n, 1))
      nil
    end

    # Adds n to a sum in this process, which is sent within `later_every` seconds. Without a time it counts in the slice that is
    # current when Redis receives it.
    #
    # @param (see #add)
    # @return [nil]
    # @raise [NotCounted] with the reason `BUSY` if 100,000 sums wait
    def later(name, n = 1, at = nil)
      @later.add(self, [-@family.id_if_known(name, 200), millis(at)], @family.integer(n, 1))
    end

    # Returns the slices of a window.
    #
    # @param label [String] `60s`, `day` or `month`, as the family is configured
    # @return [Array<Array(Integer, Integer)>] start in Unix seconds and count, the oldest first; the last slice is not over
    def get(name, label)
      @family.reading do
        name = @family.id(name, 200)
        is_label = @family.settings["labels"].include?(label)
        raise NotCounted.new("BADARG", "#{@family.name} has no window #{label.inspect}") unless is_label

        partition = @family.partition(name)
        window = @family.keys(partition, "series:#{label}:#{name}")
        _, *texts = @family.read_of_home("series_get", partition, CALENDARS, window, label)
        starts, counts = texts.map { |text| text.split.map { |word| Integer(word) } }
        starts.zip(counts)
      end
    end

    private

    def partition((name, _), of, _settings) = @family.partition(@family.id(name, 200), of)

    def entries(home, partition, sums, settings)
      windows = sums.keys.flat_map { |name, _| settings["labels"].map { |label| "series:#{label}:#{name}" } }
      keys = @family.keys(home, *CALENDARS) + @family.keys(partition, "buffer", "meta", "names", "idle", *windows)
      [keys, sums.flat_map { |(name, at), n| [name, n, at] }, sums.keys.map { |key| [key] }]
    end

    # @return [Integer, String] Unix milliseconds, or "" for now
    def millis(at)
      return "" if at.nil?
      raise NotCounted.new("BADTIME", "#{at.inspect} is not a Time, nor Unix seconds") unless at.is_a?(Time) || at.is_a?(Numeric)

      (at.to_r * 1000).floor.tap { |ms| raise NotCounted, "BADTIME" unless ms.between?(0, 10**15 - 1) }
    end
  end
end
