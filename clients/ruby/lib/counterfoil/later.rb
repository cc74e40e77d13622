# frozen_string_literal: true

class Counterfoil
  # Sums in this process, which a thread sends.
  class Later
    LIMIT = 100_000
    PAUSE = 0.1
    private_constant(*constants(false))

    # @param every [Numeric] seconds
    # @param on_error [#call, nil] receives family, id, delta and error of each sum that is dropped
    def initialize(every, on_error)
      @every, @on_error, @mutex = every, on_error, Mutex.new
      start_anew
    end

    # Adds delta to the sum of an id.
    def add(counters, id, delta)
      @mutex.synchronize do
        start_anew if forked?
        sums = @sums[counters]
        raise NotCounted.new("BUSY", "#{LIMIT} ids wait", temporary: true) unless sums.key?(id) || size < LIMIT
        raise NotCounted.new("RANGE", "the sum of #{id} is beyond 64 bits") if (sums[id] + delta).bit_length > 63

        sums[id] += delta
        @thread&.alive? ? @waiting.signal : start_thread
      end
      nil
    end

    # Sends all sums, and raises the first error since the last call. Sums that wait for Redis stay.
    def flush
      kept, dropped = send_all, nil
      @mutex.synchronize { dropped, @dropped = @dropped, [] }
      error = dropped[0] || kept[0]
      raise error.class.new(error.reason, "#{(dropped + kept).size} ids: #{error.detail}", temporary: error.temporary?) if error
    end

    private

    def forked? = @pid != Process.pid

    # a fork: these sums are the parent's
    def start_anew
      @pid, @sums, @in_flight, @dropped, @thread = Process.pid, no_sums, 0, [], nil
      @waiting, @sending = ConditionVariable.new, Mutex.new
    end

    # for each family the sums of its ids
    def no_sums = Hash.new { |sums, counters| sums[counters] = Hash.new(0) }

    def size = @in_flight + @sums.sum { |_, own| own.size }

    def start_thread
      @thread = Thread.new do
        loop do
          @mutex.synchronize { @waiting.wait(@mutex) while @sums.empty? }
          sleep(@every)
          sleep(PAUSE) if send_all.any?
        end
      end
      @at_exit ||= at_exit do
        flush
      rescue Error => error
        warn("counterfoil: later: #{error.message}")
      end
    end

    # @return [Array<Error>] why sums stay
    def send_all
      @mutex.synchronize { start_anew if forked? }
      # an interrupt, e.g. a Timeout or kill, would lose the sums that are under way
      @sending.synchronize { Thread.handle_interrupt(Object => :never) { send_and_settle } }
    end

    def send_and_settle
      sums = @mutex.synchronize { @sums.tap { @in_flight, @sums = size, no_sums } }
      kept, dropped = send_sums(sums).partition { |error, *| error.temporary? }
      @mutex.synchronize do
        kept.each { |_, counters, id, delta| @sums[counters][id] += delta }
        @in_flight = 0
        @dropped.concat(dropped.map(&:first))
      end
      dropped.each { |error, counters, id, delta| @on_error.call(counters.name, id, delta, error) } if @on_error
      kept.map(&:first)
    end

    # @return [Array<Array>] error, counters, id and delta of each that failed
    def send_sums(sums)
      sums.flat_map do |counters, own|
        counters.add_many(own).zip(own).filter_map { |result, sum| [result, counters, *sum] if result.is_a?(Error) }
      end
    end
  end
end
