# frozen_string_literal: true

class Counterfoil
  # Sums in this process, which a thread sends.
  class Later
    LIMIT = 100_000
    PAUSE = 0.1
    private_constant(*constants(false))

    # @param connection [Connection]
    # @param every [Numeric] seconds
    # @param on_error [#call, nil] receives family, id, delta and error of each sum that is dropped
    def initialize(connection, every, on_error)
      @connection, @every, @on_error, @mutex, @is_over = connection, every, on_error, Lock.new, false
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
      flush if @is_over
    end

    # Sends all sums, and raises the first error since the last call. Sums that wait for Redis stay.
    def flush
      @mutex.synchronize { start_anew if forked? }
      # an own thread: handle_interrupt does not hold back what a signal handler raises in the main thread
      kept = Thread.new { (Thread.current.report_on_exception = false) || send_all }.value
      error, size = @mutex.synchronize { [@dropped, @dropped_size].tap { @dropped, @dropped_size = nil, 0 } }
      error ||= kept[0]
      raise error.class.new(error.reason, "#{size + kept.size} ids: #{error.detail}", temporary: error.temporary?) if error
    end

    private

    def forked? = @pid != Process.pid

    # a fork: these sums are the parent's
    def start_anew
      @pid, @sums, @in_flight, @dropped, @dropped_size, @thread = Process.pid, no_sums, 0, nil, 0, nil
      @waiting, @sending = ConditionVariable.new, Lock.new
    end

    # for each family the sums of its ids
    def no_sums = Hash.new { |sums, counters| sums[counters] = Hash.new(0) }

    def size = @in_flight + @sums.sum { |_, own| own.size }

    def start_thread
      @at_exit ||= at_exit do # first, since an interrupt may follow
        @is_over = true # blocks that were registered before run now
        flush
      rescue Error => error
        warn("counterfoil: later: #{error.message}")
      end
      @thread = Thread.new do
        loop do
          @mutex.synchronize { @waiting.wait(@mutex) while @sums.empty? }
          sleep(@every)
          sleep(PAUSE) if send_all.any?
        end
      end
    end

    # @return [Array<Error>] why sums stay
    def send_all
      # an interrupt, e.g. a Timeout or kill, would lose the sums that are under way
      Thread.handle_interrupt(Object => :never) do
        kept, dropped = @sending.synchronize { send_and_settle }
        dropped.each { |error, counters, id, delta| @on_error.call(counters.name, id, delta, error) } if @on_error
        kept.map(&:first)
      end
    end

    def send_and_settle
      is_last, sums = @is_over, @mutex.synchronize { @sums.tap { @in_flight, @sums = size, no_sums } }
      kept, dropped = send_sums(sums).partition { |error, *| error.temporary? && !is_last }
      @mutex.synchronize do
        kept.each { |_, counters, id, delta| @sums[counters][id] += delta }
        @in_flight = 0
        @dropped ||= dropped.dig(0, 0)
        @dropped_size += dropped.size
      end
      [kept, dropped]
    end

    # @return [Array<Array>] error, counters, id and delta of each that failed
    def send_sums(sums)
      @connection.within do
        sums.flat_map do |counters, own|
          counters.add_many(own).zip(own).filter_map { |result, sum| [result, counters, *sum] if result.is_a?(Error) }
        rescue StandardError => error # of the application, such as that of a pool's block
          own.map { |sum| [OutcomeUnknown.new(error.class.name, error.message), counters, *sum] }
        end
      end
    end
  end
end
