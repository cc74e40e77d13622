# frozen_string_literal: true

class Counterfoil
  # Counters whose hits Redis sums, and whose sums reach MySQL within about a minute.
  #
  #   views = counterfoil.buffered("product_views")
  #   views.add("product-1")
  class Buffered < Counters
    MAX_HITS = 1000
    private_constant :MAX_HITS

    def initialize(family, later, exact)
      super(family, "buffered_add", %w[buffer meta])
      @later = later
      @exact = exact
    end

    # Adds delta to the counter.
    #
    # @param id [String, Symbol, Integer] 1 to 255 bytes of UTF-8
    # @param delta [Integer] 64 bits
    # @return [Integer, nil] what the counter has pending after it; nil if the hit was counted, but that reply was lost
    # @raise [NotCounted, OutcomeUnknown, Misconfigured]
    def add(id, delta = 1) = count_one(id, delta)

    # Adds each delta to its counter, in as few calls as possible. Pairs fail separately.
    #
    # @param pairs [Hash{String => Integer}, Array<Array(String, Integer)>]
    # @return [Array<Integer, nil, Error>] for each pair, in their order, the result of {#add} or its error
    def add_many(pairs) = count_all(pairs.to_a)

    # Adds delta to the counter unless this was done before for the same request and id, by any process.
    #
    # @param request [String] the name of the request, e.g. the id of a job: 1 to 64 bytes
    # @param epoch [String, nil] as {#request_epoch} returned it before the first call; the current one by default
    # @return [Boolean] true if it was counted now, false if before
    # @raise [OutcomeUnknown] with the reason `EXPIRED` if Redis may have forgotten the request
    def add_once(request, id, delta = 1, epoch: nil)
      request, id, partition = request(request, id)
      pair = Item.new(partition, id, change(delta))
      caller = "request:#{request.bytesize}:#{request}:#{id}"
      keys = @family.keys(partition, *@key_names)
      status, *words = @family.count_request(caller, epoch, @family.home(partition), keys, group_args([pair]))
      result = status == "OK" ? result(words[1]) : repeated(words[0], 1)[0]
      result.is_a?(Error) ? raise(result) : status == "OK"
    end

    # Returns the epoch to store with a job before {#add_once} is called for it. Redis then remembers the request for
    # a minute at least.
    #
    # @return [String]
    def request_epoch(request, id) = @family.epoch(@family.home(request(request, id)[2]), fresh: true).now

    # Adds delta to a sum in this process, which is sent within `later_every` seconds.
    #
    # @raise [NotCounted] with the reason `BUSY` if 100,000 ids wait
    def later(id, delta = 1) = @later.add(self, @family.text(id), change(delta))

    # Waits until all that {#later} took before is counted.
    #
    # @raise [Error] the first error since the previous flush
    def flush = @later.flush

    # Returns the exact value: what MySQL holds and what is pending.
    #
    # @return [Integer]
    def value(id) = @exact.value(@family, @family.text(id))

    private

    def change(delta) = @family.integer(delta)

    # hits of a wide family may go to any partition
    def item(id, change)
      return super unless @family.settings["wide"]

      Item.new(rand(@family.partitions), @family.text(id), change(change))
    end

    def request(request, id)
      request = @family.text(request, 64)
      id = @family.text(id)
      [request, id, @family.partition(@family.settings["wide"] ? request : id)]
    end

    def group_args(items)
      hits = items.sum { |item| item.change.abs }.clamp(1, MAX_HITS)
      items.each_with_object([hits, items.size]) { |item, args| args << item.id << item.change }
    end

    # without the total of each partition
    def words(reply, groups)
      at = 1
      groups.flat_map { |items| reply[(at += items.size + 1) - items.size, items.size] }
    end

    def result(word) = word.is_a?(String) && word.match?(/[A-Z]/) ? NotCounted.new(word) : Integer(word)

    # @param refused [String] e.g. "3:FULL 7:RANGE"
    def repeated(refused, size)
      words = refused.split.to_h { |one| one.split(":", 2) }
      (1..size).map { |i| words[i.to_s]&.then { |word| NotCounted.new(word) } }
    end
  end
end
