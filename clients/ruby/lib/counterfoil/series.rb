# frozen_string_literal: true

class Counterfoil
  # Counts over time, e.g. in each of the last 120 minutes.
  #
  #   hits = counterfoil.series("hits")
  #   hits.add("front")
  #   hits.get("front", "60s").last   #=> [1410134400, 1]
  class Series
    CALENDARS = %w[calendar:day calendar:month].freeze
    private_constant :CALENDARS

    def initialize(family)
      @family = family
    end

    # Counts n into the current slice of each window, or into those of another time.
    #
    # @param name [String] 1 to 200 bytes of UTF-8
    # @param n [Integer] 1 or more
    # @param at [Time, Numeric, nil] when it happened, or Unix seconds; nil for now
    # @return [nil]
    # @raise [NotCounted, OutcomeUnknown, Misconfigured]
    def add(name, n = 1, at = nil)
      n, at, name = @family.integer(n, 1), millis(at), @family.id(name, 200)
      partition = @family.partition(name, of = @family.partitions)
      home = @family.home(partition)
      reply = @family.count_anew do
        windows = labels.map { |label| "series:#{label}:#{name}" }
        keys = @family.keys(home, *CALENDARS) + @family.keys(partition, "buffer", "meta", "names", "idle", *windows)
        @family.call("series_add", home, keys, [name, n, at], of)
      end
      @family.refuse(reply)
    end

    # Returns the slices of a window.
    #
    # @param label [String] `60s`, `day` or `month`, as the family is configured
    # @return [Array<Array(Integer, Integer)>] start in Unix seconds and count, the oldest first; the last slice is not over
    def get(name, label)
      name = @family.id(name, 200)
      raise NotCounted.new("BADARG", "#{@family.name} has no window #{label.inspect}") unless labels.include?(label)

      partition = @family.partition(name)
      window = @family.keys(partition, "series:#{label}:#{name}")
      _, *texts = @family.read_of_home("series_get", partition, CALENDARS, window, label)
      starts, counts = texts.map { |text| text.split.map { |word| Integer(word) } }
      starts.zip(counts)
    end

    private

    def labels = @family.settings["labels"]

    # @return [Integer, String] Unix milliseconds, or nothing for now
    def millis(at)
      return "" if at.nil?
      raise NotCounted.new("BADTIME", "#{at.inspect} is not a Time, nor Unix seconds") unless at.is_a?(Time) || at.is_a?(Numeric)

      (at.to_r * 1000).floor.tap { |ms| raise NotCounted, "BADTIME" unless ms.between?(0, 10**15 - 1) }
    end
  end
end
