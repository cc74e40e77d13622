# frozen_string_literal: true

class Counterfoil
  # Counters whose values are in Redis while they are in use: each change returns the new value, and may be refused at a bound.
  #
  #   votes = counterfoil.cached("votes") { |id| Item.where(id: id).pick(:votes) }
  #   votes.incr("item-1")
  class Cached < Counters
    # The result for a counter that Redis does not have. Its row, read after the ticket was received, becomes its base.
    Miss = Struct.new(:ticket)
    private_constant :Miss

    # @param read_row [#call] returns the value of the row of an id on the primary; not in an open transaction
    def initialize(family, daemons, read_row)
      super(family, "cached_incr", %w[base buffer batch meta], daemons)
      @read_row, @reads = read_row, {}
    end

    # Adds delta to the counter.
    #
    # @param id [String, Symbol, Integer] 1 to 255 bytes of UTF-8
    # @param delta [Integer] 64 bits
    # @return [Integer] the new value
    # @raise [NotCounted] with the reason `RANGE` and the current value if the new one is out of bounds
    # @raise [OutcomeUnknown, Misconfigured]
    def incr(id, delta = 1) = counting(id) { |text| count_one(text, @family.integer(delta)) }

    # Adds delta to the counter unless this was done before for the same request and id, by any process. A request that was
    # refused at a bound is refused again.
    #
    # @param request [String] the name of the request, e.g. the id of a job: 1 to 64 bytes
    # @param epoch [String, nil] what {#request_epoch} returned before the first call; by default the current one
    # @return [Integer] the value that the counter had then
    # @raise (see #incr)
    def incr_once(request, id, delta = 1, epoch: nil)
      named = request(request, epoch)
      counting(id) { |text| count_one(text, @family.integer(delta), named) }
    end

    # @return [String] the epoch to store with a job before {#incr_once} is called for it
    def request_epoch(request, id)
      request(request)
      @family.counting { @family.request_epoch(@family.partition(@family.id(id))) }
    end

    # Sets the counter.
    #
    # @return [Integer] the new value
    # @raise (see #incr)
    def set(id, value) = counting(id) { |text| count_one(text, "=#{@family.integer(value)}") }

    # @return [Integer] the value
    def get(id) = @family.reading { with_base(id) { |text| read(text) } }

    private

    def counting(id, &block) = @family.counting { with_base(id, &block) }

    def read(id)
      partition = @family.partition(id)
      keys = @family.keys(partition, "base", "buffer", "batch", "meta")
      word = @family.read("cached_get", @family.home(partition), keys, [1, "", SecureRandom.hex(8), "", id])[1]
      raise NotCounted.new(word, "#{name} in the partition of #{id}", temporary: true) if word == "UNCONFIGURED"

      result(word)
    end

    # Repeats the block until Redis has the counter: after a miss it is seeded from its row.
    def with_base(id)
      id = @family.id(id)
      loop do
        result = yield(id)
        return result unless result.is_a?(Miss)
        raise NotCounted.new("MISS", "#{id} was deleted again and again", temporary: true) if Limit.now > Limit.at

        share_read([id, result.ticket, Process.pid]) { seed(id, result.ticket) } # with the pid, since a fork does not finish its parent's reads
      end
    end

    # Callers that received the same ticket share one read of the row, which begins after the ticket was received. If the caller
    # that reads is interrupted, the next one reads.
    def share_read(key)
      read = @mutex.synchronize { @reads[key] ||= Lock.new }
      read.synchronize do
        yield if @reads[key].equal?(read)
      ensure
        @mutex.synchronize { @reads.delete(key) if @reads[key].equal?(read) }
      end
    end

    def seed(id, ticket)
      row, partition = @read_row.call(id), @family.partition(id)
      value = row.nil? ? "-" : @family.integer(row)
      home = @family.home(partition)
      keys = @family.keys(home, "calls") + @family.keys(partition, "base")
      word = @family.read("cached_seed", home, keys, ["", "", id, ticket, value])[1]
      raise NotCounted.new(word) if %w[NOROW BEYOND].include?(word)
    end

    def change(change) = change

    def add_group(args, items) = items.each_with_object(args << items.size) { |item, list| list << item.id << item.change }

    def set_counted(words, items) = items.zip(words) { |item, word| set_result(item, word) }

    def set_repeated(words, items) = set_counted(words.split, items)

    def result(word)
      kind, rest = word.to_s.split(":", 2)
      case kind
      when "MISS" then Miss.new(rest)
      when "RANGE" then NotCounted.new("RANGE", "the value stays #{rest}", value: Integer(rest))
      when /[A-Z]/ then NotCounted.new(kind)
      else Integer(kind)
      end
    end
  end
end
