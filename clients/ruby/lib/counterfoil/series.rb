# frozen_string_literal: true

class Counterfoil
  # Counts over time, e.g. in each of the last 120 minutes.
  #
  #   hits = counterfoil.series("hits")
  #   hits.add("front")
  #   hits.get("front", "60s").last   #=> [1410134400, 1]
  class Series
    def initialize(family)
      @family = family
    end

    # Counts n into the current slice of each window.
    #
    # @param name [String] 1 to 200 bytes of UTF-8
    # @param n [Integer] 1 or more
    # @return [nil]
    # @raise [NotCounted, OutcomeUnknown, Misconfigured]
    def add(name, n = 1)
      name, n = @family.id(name, 200), @family.integer(n, 1)
      partition = @family.partition(name, of = @family.partitions)
      keys = @family.keys(partition, "open", "schedule", "names", "idle", *windows.map { |label,| "series:#{label}:#{name}" })
      reply = @family.at_server_time do |now_ms|
        precisions = windows.map { |label, slices| precision(label, slices, now_ms / 1000) }
        @family.count(@family.call("series_add", @family.home(partition), keys, [precisions.size, *precisions, name, n], of))
      end
      word = reply[1].to_s[/[A-Z]+/]
      raise NotCounted, word if word
    end

    # Returns the slices of a window.
    #
    # @param label [String] `60s`, `day` or `month`, as the family is configured
    # @return [Array<Array(Integer, Integer)>] start in Unix seconds and count, the oldest first; the last slice is not over
    def get(name, label)
      name = @family.id(name, 200)
      _, slices = windows.assoc(label) || raise(NotCounted.new("BADARG", "#{@family.name} has no window #{label.inspect}"))
      _, now_ms, text = @family.read("series_get", @family.keys(@family.partition(name), "series:#{label}:#{name}"), [""])
      starts = [calendar.slice(label, Integer(now_ms) / 1000).begin]
      starts.unshift(calendar.slice(label, starts[0] - 1).begin) while starts.size < slices
      counts = text.split.map { |word| Integer(word) }.each_slice(2).to_h
      starts.map { |start| [start, counts.fetch(start, 0)] }
    end

    private

    def windows = @family.settings["windows"]

    def calendar = @calendar ||= Calendar.new(@family.settings["time_zone"] || "UTC")

    # @return [String] LABEL SLICE SLICES KEEP
    def precision(label, slices, at)
      slice, is_fixed = calendar.slice(label, at), label.to_i > 0
      kept, start = @family.settings["keep"], is_fixed ? "*" : calendar.date(slice.begin)
      keep = kept.include?(label) ? "#{"#{label}/" if kept.size > 1}#{start}/" : "-"
      "#{label} #{is_fixed ? label.to_i : "#{slice.begin}-#{slice.end}"} #{slices} #{keep}"
    end
  end
end
