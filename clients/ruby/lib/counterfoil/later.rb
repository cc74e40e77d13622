# frozen_string_literal: true

class Counterfoil
  # Sums in this process, which a thread sends.
  class Later
    LIMIT = 100_000
    PAUSE = 0.1
    I64 = (-2**63..2**63 - 1)
    private_constant :LIMIT, :PAUSE, :I64

    # @param every [Numeric] seconds
    # @param on_error [#call, nil] receives family, id, delta and error of each sum that is dropped
    def initialize(every, on_error)
      @every = every
      @on_error = on_error
      @mutex = Mutex.new
      start_anew
    end

    # Adds delta to the sum of an id.
    def add(counters, id, delta)
      @mutex.synchronize do
        start_anew if forked?
        sum = (@sums[counters][id] || 0) + delta
        raise NotCounted.new("BUSY", "#{LIMIT} ids wait", temporary: true) if !@sums[counters].key?(id) && @size >= LIMIT
        raise NotCounted.new("RANGE", "the sum of #{id} is beyond 64 bits") unless I64.include?(sum)

        @size += 1 unless @sums[counters].key?(id)
        @sums[counters][id] = sum
        @thread&.alive? ? @waiting.signal : start_thread
      end
      nil
    end

    # Sends all sums, and raises the first error since the last call. Sums that wait for Redis stay.
    def flush
      kept = send_all
      error, count = @mutex.synchronize { [@error, @dropped].tap { @error, @dropped = nil, 0 } }
      raise error.class.new(error.reason, [count == 1 ? "1 id" : "#{count} ids", error.detail].compact.join(": ")), cause: error if error
      raise NotCounted.new(kept.reason, "#{@size} ids wait: #{kept.detail}", temporary: true), cause: kept if kept
    end

    # Sends all sums, and ends the thread.
    def close
      flush
    ensure
      @thread&.kill unless forked?
    end

    private

    def forked? = @pid != Process.pid

    def start_anew
      @pid = Process.pid
      @sums = Hash.new { |sums, counters| sums[counters] = {} }
      @size = @dropped = 0
      @error = @thread = nil
      @waiting = ConditionVariable.new
      @sending = Mutex.new
    end

    def start_thread
      @thread = Thread.new { run }
      @thread.name = "counterfoil"
      @at_exit ||= at_exit { flush_at_exit }
    end

    def run
      loop do
        @mutex.synchronize { @waiting.wait(@mutex) while @sums.empty? }
        sleep(@every)
        sleep(PAUSE) if send_all
      end
    end

    def flush_at_exit
      flush
    rescue Error => error
      warn("counterfoil: later: #{error.message}")
    end

    # @return [NotCounted, nil] why sums stay
    def send_all
      @mutex.synchronize { start_anew if forked? }
      @sending.synchronize do
        sums = @mutex.synchronize { @sums.dup.tap { @sums.clear } }
        failed = sums.flat_map { |counters, deltas| send_sums(counters, deltas) }
        kept, dropped = failed.partition { |*, error| error.is_a?(NotCounted) && error.temporary? }
        @mutex.synchronize { settle(kept, dropped) }
        dropped.each { |counters, id, delta, error| @on_error.call(counters.name, id, delta, error) } if @on_error
        kept.dig(0, 3)
      end
    end

    def send_sums(counters, deltas)
      counters.add_many(deltas).zip(deltas).filter_map do |result, (id, delta)|
        [counters, id, delta, result] if result.is_a?(Error)
      end
    end

    def settle(kept, dropped)
      kept.each { |counters, id, delta,| @sums[counters][id] = (@sums[counters][id] || 0) + delta }
      @size = @sums.sum { |_, deltas| deltas.size }
      @dropped += dropped.size
      @error ||= dropped.dig(0, 3)
    end
  end
end
