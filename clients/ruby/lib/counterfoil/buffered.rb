# frozen_string_literal: true

class Counterfoil
  # Counters whose hits Redis sums, and whose sums reach MySQL within about a minute.
  #
  #   views = counterfoil.buffered("product_views")
  #   views.add("product-1")
  class Buffered < Counters
    MAX_HITS = 1000
    private_constant :MAX_HITS

    def initialize(family, daemons, later)
      super(family, "buffered_add", %w[buffer meta], daemons)
      @later = later
    end

    # Adds delta to the counter.
    #
    # @param id [String, Symbol, Integer] 1 to 255 bytes of UTF-8
    # @param delta [Integer] 64 bits
    # @return [Integer, nil] what the counter has pending after it; nil if the hit was counted, but that reply was lost
    # @raise [NotCounted, OutcomeUnknown, Misconfigured]
    def add(id, delta = 1) = @family.counting { count_one(id, delta) }

    # Adds each delta to its counter, in as few calls as possible. Pairs fail separately.
    #
    # @param pairs [Hash{String => Integer}, Array<Array(String, Integer)>]
    # @return [Array<Integer, nil, Error>] for each pair, in their order, the result of {#add} or its error
    def add_many(pairs) = @family.counting { count_all(pairs.to_a) }

    # Adds delta to the counter unless this was done before for the same request and id, by any process. Redis remembers a
    # request for an hour, or as long as the family's `remember_requests`.
    #
    # @param request [String] the name of the request, e.g. the id of a job: 1 to 64 bytes
    # @param epoch [String, nil] what {#request_epoch} returned before the first call: then the request never counts twice. By
    #   default the current one
    # @return [Boolean] true if it was counted now, false if before
    # @raise [OutcomeUnknown] with the reason `EXPIRED` if Redis may have forgotten the request
    def add_once(request, id, delta = 1, epoch: nil)
      is_before = false
      @family.counting { count_one(id, delta, request(request, epoch)) { |item| is_before = item.before } }
      !is_before
    end

    # @return [String] the epoch to store with a job before {#add_once} is called for it
    def request_epoch(request, id)
      @family.counting { @family.request_epoch(partition(@family.id(id), @family.partitions, request(request))) }
    end

    # Adds delta to a sum in this process, which is sent within `later_every` seconds.
    #
    # @return [nil]
    # @raise [NotCounted] with the reason `BUSY` if 100,000 ids wait
    def later(id, delta = 1) = @later.add(self, @family.id_if_known(id), change(delta))

    # Sends what `later` of any family took before, for `retry_for` at most.
    #
    # @return [nil]
    # @raise [Error] the first error since the previous flush
    def flush = @later.flush

    # @api private
    def count_sums(sums) = add_many(sums)

    # @api private
    def label(id) = id

    private

    def change(delta) = @family.integer(delta)

    # in a wide family any partition takes a hit, but a request needs the same one in every process
    def partition(id, of, request)
      return super unless @family.settings["wide"]

      request ? @family.partition(request[0], of) : rand(of)
    end

    def add_group(args, items)
      args << items.sum { |item| item.change.abs }.clamp(1, MAX_HITS) << items.size
      items.each { |item| args << item.id << item.change }
      args
    end

    # the words of each partition begin with its total, which is skipped
    def set_counted(words, items)
      groups(items).each do |members|
        words.shift
        members.each { |item| set_result(item, words.shift) }
      end
    end

    def result(word) = word.is_a?(String) && word.match?(/[A-Z]/) ? NotCounted.new(word) : Integer(word)

    # @param refused [String] e.g. "3:FULL 7:RANGE", counted from 1
    def set_repeated(refused, items)
      refused.scan(/(\d+):(\S+)/) { |index, word| set_result(items[index.to_i - 1], word) }
    end
  end
end
