# frozen_string_literal: true

require "date"

class Counterfoil
  # Counts each visitor of a scope once a day.
  #
  #   daily = counterfoil.visitors("daily")
  #   daily.first_visit("shop-1", "2014-09-20", "visitor-1")
  class Visitors < Tallies
    include Values

    MAX = 1000
    private_constant :MAX

    def initialize(family, daemons, later)
      super(family, "visitors_first", MAX, later)
      @daemons = daemons
    end

    # Counts the visitor unless it was there on this day.
    #
    # @param scope [String, Symbol, Integer] with the day 1 to 255 bytes of UTF-8
    # @param day [String, Date] `YYYY-MM-DD`
    # @param visitor [String, Symbol, Integer] 1 to 255 bytes of any kind
    # @return [Boolean] true if the visitor is new
    # @raise [NotCounted, OutcomeUnknown, Misconfigured]
    def first_visit(scope, day, visitor) = count_one(key(scope, day, visitor), 1) == 1

    # Adds the visitor to those of this process, which are sent within `later_every` seconds.
    #
    # @param (see #first_visit)
    # @return [nil]
    # @raise [NotCounted] with the reason `BUSY` if 100,000 sums wait
    def later(scope, day, visitor)
      key = key(scope, day, visitor)
      id(key) if @family.known?
      @later.add(self, key.map(&:-@), 1)
    end

    # @param default (see Values#value)
    # @return [Integer] the exact number of visitors of the day
    def value(scope, day, default = NONE, &block) = values([[scope, day]], default, &block)[0]

    # @api private
    def label((scope, day, _)) = [scope, day].join(@family.known? ? @family.settings["separator"] : "/")

    private

    def key(scope, day, visitor) = [*scope_and_day(scope, day), @family.bytes(visitor)]

    def scope_and_day(scope, day)
      day = day.to_s
      is_day = day.match?(/\A\d{4}-\d\d-\d\d\z/) && Date.valid_date?(*day.split("-").map(&:to_i))
      raise NotCounted.new("BADID", "#{day.inspect} is not YYYY-MM-DD") unless is_day

      [@family.text(scope), day]
    end

    # needs the family's separator, and asks Redis for it if it is not known
    def id((scope, day, _)) = @family.id("#{scope}#{@family.settings["separator"]}#{day}")

    def row_id((scope, day)) = id(scope_and_day(scope, day))

    def partition(key, of, _settings) = @family.partition(id(key), of)

    def entries(_home, partition, sums, _settings)
      days = sums.keys.group_by { |key| id(key) }
      keys = @family.keys(partition, "buffer", "meta", *days.keys.map { |id| "seen:#{id}" })
      [keys, [days.size, *days.flat_map { |id, own| [id, own.size, *own.map(&:last)] }], days.values.flatten(1).map { |key| [key] }]
    end

    # after DUP there is a word for each visitor, as after OK
    def repeated(words, _size) = words
  end
end
