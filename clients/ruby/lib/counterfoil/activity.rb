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
      page, visitor = @family.id(page, 200), @family.bytes(visitor)
      stripe = Zlib.crc32(visitor) % settings["stripes"]
      partition = partition(page, stripe, of = @family.partitions)
      keys = @family.keys(partition, "open", "schedule", "views:#{stripe}:#{page}", "visitors:#{stripe}:#{page}")
      args = [*window, settings["keep_minutes"] ? 1 : 0, 1, page, 1, 1, visitor]
      @family.count(@family.call("activity_touch", @family.home(partition), keys, args, of))
      nil
    end

    # @return [Array(Integer, Integer)] views and visitors of the window
    def now(page)
      page = @family.id(page, 200)
      by_home = (0...settings["stripes"]).group_by { |stripe| @family.home(partition(page, stripe)) }.values
      by_home.flat_map { |stripes| stripes.each_slice(PLACES).flat_map { |some| read(page, some) } }.transpose.map(&:sum)
    end

    private

    def settings = @family.settings

    def partition(page, stripe, of = @family.partitions) = (Zlib.crc32(page) + stripe) % of

    # length and number of layers
    def window = [settings["layer"], settings["window"] / settings["layer"]]

    # @return [Array<Array(Integer, Integer)>] of each stripe
    def read(page, stripes)
      keys = stripes.flat_map { |stripe| @family.keys(partition(page, stripe), "views:#{stripe}:#{page}", "visitors:#{stripe}:#{page}") }
      reply = @family.read("activity_now", keys, ["", *window])
      reply.drop(1).each_slice(2).to_a
    end
  end
end
