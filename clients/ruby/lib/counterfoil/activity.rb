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
      @clock = ServerClock.new
    end

    # Counts a view of the page by the visitor.
    #
    # @param page [String] 1 to 200 bytes of UTF-8
    # @param visitor [String] 1 to 255 bytes of any kind
    # @return [nil]
    # @raise [NotCounted, OutcomeUnknown, Misconfigured]
    def touch(page, visitor)
      page = @family.text(page, 200)
      visitor = @family.bytes(visitor)
      stripe = Zlib.crc32(visitor) % settings["stripes"]
      partition = partition(page, stripe)
      @clock.call do |now_ms|
        layer, minute = now_ms / settings["layer"], now_ms / 60_000 * 60
        names = [hll? ? "layer:#{layer}:#{stripe}:#{page}" : "visitors:#{stripe}:#{page}"]
        names << "minute:#{minute}:#{stripe}:#{page}" if hll? && keeps?
        keys = @family.keys(partition, "open", "schedule", "views:#{stripe}:#{page}", *names)
        args = [*window, keeps? ? 1 : 0, *layer_arg(layer), 1, page, 1, 1, visitor]
        @family.count(@family.call(hll? ? "activity_touch_hll" : "activity_touch", @family.home(partition), keys, args))
      end
      nil
    end

    # @return [Array(Integer, Integer)] views and visitors of the window; visitors are an estimate in a family of HyperLogLogs
    def now(page)
      page = @family.text(page, 200)
      stripes = (0...settings["stripes"]).group_by { |stripe| @family.home(partition(page, stripe)) }.values
      sums = stripes.flat_map { |group| group.each_slice(PLACES).map { |places| read(page, places) } }
      sums.transpose.map(&:sum)
    end

    private

    def settings = @family.settings

    def hll? = settings["visitors"] == "hyperloglog"

    def keeps? = settings["keep_minutes"]

    def partition(page, stripe) = (Zlib.crc32(page) + stripe) % @family.partitions

    def window = [settings["layer"], settings["window"] / settings["layer"]]

    def layer_arg(layer) = hll? ? [layer] : []

    def read(page, stripes)
      reply = @clock.call do |now_ms|
        layer = now_ms / settings["layer"]
        keys = stripes.flat_map do |stripe|
          names = hll? ? (0...window[1]).map { |age| "layer:#{layer - age}:#{stripe}:#{page}" }.reverse : ["visitors:#{stripe}:#{page}"]
          @family.keys(partition(page, stripe), "views:#{stripe}:#{page}", *names)
        end
        @family.read(hll? ? "activity_now_hll" : "activity_now", keys, ["", *window, *layer_arg(layer)])
      end
      reply.drop(1).each_slice(2).to_a.transpose.map(&:sum)
    end
  end
end
