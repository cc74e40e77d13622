# frozen_string_literal: true

require "date"

class Counterfoil
  # Counts each visitor of a scope once a day.
  #
  #   daily = counterfoil.visitors("daily")
  #   daily.first_visit("shop-1", "2014-09-20", "visitor-1")
  class Visitors
    def initialize(family, daemons)
      @family, @daemons = family, daemons
    end

    # Counts the visitor unless it was there on this day.
    #
    # @param scope [String] with the day 1 to 255 bytes of UTF-8
    # @param day [String, Date] `YYYY-MM-DD`
    # @param visitor [String] any bytes
    # @return [Boolean] true if the visitor is new
    # @raise [NotCounted, OutcomeUnknown, Misconfigured]
    def first_visit(scope, day, visitor)
      id = id(scope, day)
      partition = @family.partition(id, of = @family.partitions)
      args = [1, id, 1, @family.bytes(visitor)]
      keys = @family.keys(partition, "buffer", "meta", "seen:#{id}")
      word = @family.count(@family.call("visitors_first", @family.home(partition), keys, args, of)).last.to_s
      word.match?(/[A-Z]/) ? raise(NotCounted, word) : word == "1"
    end

    # @return [Integer] the exact number of visitors of the day
    def value(scope, day) = values([[scope, day]])[0]

    # @param days [Enumerable<Array(String, String)>] scopes and days
    # @return [Array<Integer>] the exact numbers of visitors, in their order
    def values(days) = @daemons.values(@family, days.map { |scope, day| id(scope, day) })

    private

    def id(scope, day)
      is_day = day.to_s.match?(/\A\d{4}-\d\d-\d\d\z/) && Date.valid_date?(*day.to_s.split("-").map(&:to_i))
      raise NotCounted.new("BADID", "#{day.inspect} is not YYYY-MM-DD") unless is_day

      @family.id("#{@family.text(scope)}#{@family.settings["separator"]}#{day}")
    end
  end
end
