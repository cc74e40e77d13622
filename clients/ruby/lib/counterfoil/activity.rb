# frozen_string_literal: true

class Counterfoil
  # Views and distinct visitors of pages in a sliding window.
  #
  #   readers = counterfoil.activity("readers")
  #   readers.touch("front", "visitor-1")
  #   views, visitors = readers.now("front")
  class Activity < Tallies
    PLACES = 100
    VISITORS = 1000
    private_constant(*constants(false))

    def initialize(family, later)
      super(family, "activity_touch", VISITORS, later)
    end

    # Counts a view of the page by the visitor.
    #
    # @param page [String, Symbol, Integer] 1 to 200 bytes of UTF-8
    # @param visitor [String, Symbol, Integer] 1 to 255 bytes of any kind
    # @return [nil]
    # @raise [NotCounted, OutcomeUnknown, Misconfigured]
    def touch(page, visitor)
      count_one([@family.text(page, 200), @family.bytes(visitor)], 1)
      nil
    end

    # Adds a view to a sum in this process, which is sent within `later_every` seconds. The view counts when it is sent.
    #
    # @param (see #touch)
    # @return [nil]
    # @raise [NotCounted] with the reason `BUSY` if 100,000 sums wait
    def later(page, visitor) = @later.add(self, [-@family.id_if_known(page, 200), -@family.bytes(visitor)], 1)

    # @return [Array(Integer, Integer)] views and visitors of the window
    def now(page)
      @family.reading do
        page = @family.id(page, 200)
        by_home = (0...stripes).group_by { |stripe| @family.home(of_stripe(page, stripe)) }.values
        by_home.flat_map { |some| some.each_slice(PLACES).flat_map { |few| read(page, few) } }.transpose.map(&:sum)
      end
    end

    private

    def stripes = @family.settings["stripes"]

    def stripe(visitor, settings) = Zlib.crc32(visitor) % settings["stripes"]

    def of_stripe(page, stripe, of = @family.partitions) = (Zlib.crc32(page) + stripe) % of

    def partition((page, visitor), of, settings) = of_stripe(@family.id(page, 200), stripe(visitor, settings), of)

    def entries(_home, partition, sums, settings)
      places = sums.group_by { |(page, visitor), _| [page, stripe(visitor, settings)] }
      keys = places.keys.flat_map { |page, stripe| ["views:#{stripe}:#{page}", "visitors:#{stripe}:#{page}"] }
      args = places.flat_map { |(page, _), own| [page, own.sum(&:last), own.size, *own.map { |(_, visitor), _| visitor }] }
      keys = @family.keys(partition, "buffer", "meta", *keys)
      [keys, [settings["stripes"], places.size, *args], places.values.map { |own| own.map(&:first) }]
    end

    # @return [Array<Array(Integer, Integer)>] views and visitors of each stripe
    def read(page, some)
      keys = some.flat_map { |stripe| @family.keys(of_stripe(page, stripe), "views:#{stripe}:#{page}", "visitors:#{stripe}:#{page}") }
      reply = @family.read_of_home("activity_now", of_stripe(page, some[0]), [], keys, stripes)
      reply.drop(1).each_slice(2).to_a
    end
  end
end
