# frozen_string_literal: true

class Counterfoil
  # Views and distinct visitors of pages in a sliding window.
  #
  #   readers = counterfoil.activity("readers")
  #   readers.touch("front", "visitor-1")
  #   views, visitors = readers.now("front")
  class Activity
    PLACES = 100
    private_constant :PLACES

    def initialize(family)
      @family = family
    end

    # Counts a view of the page by the visitor.
    #
    # @param page [String] 1 to 200 bytes of UTF-8
    # @param visitor [String] 1 to 255 bytes of any kind
    # @return [nil]
    # @raise [NotCounted, OutcomeUnknown, Misconfigured]
    def touch(page, visitor)
      visitor, page = @family.bytes(visitor), @family.id(page, 200)
      of = @family.partitions
      reply = @family.count_anew do
        stripe = Zlib.crc32(visitor) % stripes
        partition = partition(page, stripe, of)
        keys = @family.keys(partition, "buffer", "meta", "views:#{stripe}:#{page}", "visitors:#{stripe}:#{page}")
        @family.call("activity_touch", @family.home(partition), keys, [stripes, 1, page, 1, 1, visitor], of)
      end
      @family.refuse(reply)
    end

    # @return [Array(Integer, Integer)] views and visitors of the window
    def now(page)
      page = @family.id(page, 200)
      by_home = (0...stripes).group_by { |stripe| @family.home(partition(page, stripe)) }.values
      by_home.flat_map { |some| some.each_slice(PLACES).flat_map { |few| read(page, few) } }.transpose.map(&:sum)
    end

    private

    def stripes = @family.settings["stripes"]

    def partition(page, stripe, of = @family.partitions) = (Zlib.crc32(page) + stripe) % of

    # @return [Array<Array(Integer, Integer)>] of each stripe
    def read(page, some)
      keys = some.flat_map { |stripe| @family.keys(partition(page, stripe), "views:#{stripe}:#{page}", "visitors:#{stripe}:#{page}") }
      reply = @family.read_of_home("activity_now", partition(page, some[0]), [], keys, stripes)
      reply.drop(1).each_slice(2).to_a
    end
  end
end
