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
      page, visitor = @family.text(page, 200), @family.bytes(visitor)
      stripe, keeps = Zlib.crc32(visitor) % settings["stripes"], settings["keep_minutes"]
      partition = partition(page, stripe, of = @family.partitions)
      @family.at_server_time do |now_ms|
        layer = now_ms / settings["layer"]
        names = ["views:#{stripe}:#{page}", hll? ? "layer:#{layer}:#{stripe}:#{page}" : "visitors:#{stripe}:#{page}"]
        names << "minute:#{now_ms / 60_000 * 60}:#{stripe}:#{page}" if hll? && keeps
        args = [*window, keeps ? 1 : 0, *(layer if hll?), 1, page, 1, 1, visitor]
        keys = @family.keys(partition, "open", "schedule", *names)
        @family.count(@family.call("activity_touch#{"_hll" if hll?}", @family.home(partition), keys, args, of))
      end
      nil
    end

    # @return [Array(Integer, Integer)] views and visitors of the window; visitors are an estimate in a family of HyperLogLogs
    def now(page)
      page = @family.text(page, 200)
      by_home = (0...settings["stripes"]).group_by { |stripe| @family.home(partition(page, stripe)) }.values
      by_home.flat_map { |stripes| stripes.each_slice(PLACES).flat_map { |some| read(page, some) } }.transpose.map(&:sum)
    end

    private

    def settings = @family.settings

    def hll? = settings["visitors"] == "hyperloglog"

    def partition(page, stripe, of = @family.partitions) = (Zlib.crc32(page) + stripe) % of

    # length and number of layers
    def window = [settings["layer"], settings["window"] / settings["layer"]]

    # @return [Array<Array(Integer, Integer)>] of each stripe
    def read(page, stripes)
      reply = @family.at_server_time do |now_ms|
        layer = now_ms / settings["layer"]
        sets = hll? ? (layer - window[1] + 1..layer).map { |number| "layer:#{number}" } : ["visitors"]
        keys = stripes.flat_map { |stripe| @family.keys(partition(page, stripe), *["views", *sets].map { |set| "#{set}:#{stripe}:#{page}" }) }
        @family.read("activity_now#{"_hll" if hll?}", keys, ["", *window, *(layer if hll?)])
      end
      reply.drop(1).each_slice(2).to_a
    end
  end
end
