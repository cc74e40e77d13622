# frozen_string_literal: true

class Counterfoil
  # Sums in this process, which a thread sends. Those of a family are numbers by key, which its `count_sums` counts.
  class Later
    LIMIT = 100_000
    PAUSE = 1
    AT_END = 5 # seconds that the end of a process may wait
    AGAIN = 0.5
    ATTEMPT = 1 # seconds that `flush` waits in addition, since an attempt of the application's client may end after its limit
    # A sum that was not counted.
    Failed = Struct.new(:error, :counters, :key, :number) do
      # true if the sum may be counted later
      def kept? = error.temporary? || error.reason == "UNCONFIGURED"

      def cause = [counters.name, error.reason]
    end
    private_constant(*constants(false))

    # @param connection [Connection]
    # @param every [Numeric] seconds
    # @param on_error [#call, nil] receives family, id, number and error of each sum that is dropped
    def initialize(connection, every, on_error)
      @connection, @every, @on_error, @mutex, @is_over, @left = connection, every, on_error, Lock.new, false, AT_END
      start_anew
    end

    # Adds number to the sum of a key.
    def add(counters, key, number)
      @connection.check_open
      @mutex.synchronize do
        start_anew if forked?
        sums = @sums[counters]
        raise NotCounted.new("BUSY", "#{LIMIT} sums wait", temporary: true) unless sums.key?(key) || size < LIMIT
        raise NotCounted.new("RANGE", "the sum of #{counters.label(key)} is beyond 64 bits") if (sums[key] + number).bit_length > 63

        sums[key] += number
        @thread&.alive? ? @waiting.signal : start_thread
      end
      finish if @is_over
    end

    # Sends all sums, and raises the first error since the last call. Sums that wait for Redis stay.
    def flush
      @connection.check_open
      @mutex.synchronize { start_anew if forked? }
      seconds = @connection.retry_for
      sending = send_aside(seconds) { send_all }
      raise NotCounted.new(UNREACHABLE, "#{size} sums are still being sent", temporary: true) unless sending.join(seconds + ATTEMPT)

      raise_first(sending.value)
    end

    # Sends all sums for the last time, for a few seconds. Drops those that are left.
    def finish
      @is_over = true # from now on `add`, such as in another block of at_exit, sends at once
      @mutex.synchronize { forked? ? start_anew : @thread&.kill } # which takes effect after the send that is under way
      began, left = Limit.now, @left
      sending = send_aside(left) { send_to_the_end }
      sending.join(left)
      @left -= Limit.now - began
      give_up(sending.alive? ? [] : sending.value)
      raise_first([])
    end

    private

    def forked? = @pid != Process.pid

    # in a fork: the parent sends the sums that it had
    def start_anew
      @pid, @sums, @under_way, @error, @dropped, @thread = Process.pid, no_sums, no_sums, nil, Hash.new(0), nil
      @waiting, @sending, @causes = ConditionVariable.new, Lock.new, []
    end

    # a Hash with the sums of each family, by key
    def no_sums = Hash.new { |sums, counters| sums[counters] = Hash.new(0) }

    def size = [@under_way, @sums].sum { |sums| sums.sum { |_, own| own.size } }

    def start_thread
      @at_exit ||= at_exit do # before the thread starts, since an interrupt may follow
        finish
      rescue Error => error
        warn("counterfoil: later: #{error.message}")
      end
      @thread = Thread.new do
        loop do
          @mutex.synchronize { @waiting.wait(@mutex) while @sums.empty? }
          sleep(@every)
          sleep(PAUSE) if Limit.within(@connection.retry_for) { send_all }.any?
        end
      end
    end

    # in a thread of its own: handle_interrupt does not hold back what a signal handler raises in the main thread
    def send_aside(seconds, &block)
      Thread.new do
        Thread.current.report_on_exception = false
        Limit.within(seconds, &block)
      end
    end

    # @return [Array<Failed>] sums that are left
    def send_to_the_end
      loop do
        @connection.end_at(Limit.at)
        kept = send_all
        return kept if kept.none? { |sum| sum.error.temporary? } || Limit.now + AGAIN > Limit.at

        sleep(AGAIN)
      end
    end

    # @return [Array<Failed>] the sums that stay
    def send_all
      # an interrupt, e.g. a Timeout or kill, would lose the sums that are under way
      Thread.handle_interrupt(Object => :never) do
        kept, dropped = @sending.synchronize { send_and_settle }
        report(dropped)
        kept
      end
    end

    def send_and_settle
      sums = @mutex.synchronize { @sums.tap { @under_way, @sums = @sums, no_sums } }
      kept, dropped = sums.flat_map { |counters, own| send_sums(counters, own) }.partition(&:kept?)
      @mutex.synchronize do
        return [], [] unless @under_way.equal?(sums) # the end of the process has reported them

        @under_way = no_sums
        kept.each { |sum| @sums[sum.counters][sum.key] += sum.number }
        drop(dropped)
      end
      warn_of(kept)
      [kept, dropped]
    end

    # @return [Array<Failed>]
    def send_sums(counters, sums)
      results = counters.count_sums(sums)
      results.zip(sums).filter_map { |result, sum| Failed.new(result, counters, *sum) if result.is_a?(Error) }
    rescue StandardError => error # an error of the application, such as of the block that makes a pool's connections
      sums.map { |sum| Failed.new(OutcomeUnknown.new(error.class.name, error.message), counters, *sum) }
    end

    # Warns once when sums begin to wait, since nothing else may tell the application.
    def warn_of(kept)
      causes = kept.to_h { |sum| [sum.cause, sum.error] }
      causes.except(*@causes).each { |(name, _), error| warn("counterfoil: sums of #{name} wait: #{error.message}") }
      @causes = causes.keys
    end

    def drop(sums)
      @error ||= sums.dig(0, :error)
      sums.each { |sum| @dropped[sum.error.is_a?(OutcomeUnknown)] += 1 }
    end

    def report(dropped)
      dropped.each { |sum| @on_error.call(sum.counters.name, sum.counters.label(sum.key), sum.number, sum.error) } if @on_error
    end

    # Drops the sums that are left at the end of the process. Those under way have an unknown outcome.
    #
    # @param kept [Array<Failed>] sums whose errors are known
    def give_up(kept)
      errors = kept.to_h { |sum| [[sum.counters, sum.key], sum.error] }
      unsent, unknown = [NotCounted, OutcomeUnknown].map { |kind| kind.new(UNREACHABLE, "the process ends") }
      dropped = @mutex.synchronize do
        left, sent, @sums, @under_way = @sums, @under_way, no_sums, no_sums
        failed = failed(left) { |sum| errors.fetch(sum, unsent) } + failed(sent) { unknown }
        failed.tap { drop(failed) }
      end
      report(dropped)
    end

    # @yieldparam sum [Array] its counters and key
    # @yieldreturn [Error]
    # @return [Array<Failed>]
    def failed(sums)
      sums.flat_map { |counters, own| own.map { |key, number| Failed.new(yield([counters, key]), counters, key, number) } }
    end

    def raise_first(kept)
      error, dropped = @mutex.synchronize { [@error, @dropped].tap { @error, @dropped = nil, Hash.new(0) } }
      error ||= kept.dig(0, :error)
      return unless error

      sizes = { "%d sums were not counted" => dropped[false], "the outcome of %d sums is unknown" => dropped[true], "%d sums wait" => kept.size }
      sizes = sizes.filter_map { |text, size| format(text, size) if size > 0 }.join(", ")
      raise error.class.new(error.reason, [sizes, error.detail].compact.join(": "), temporary: error.temporary?)
    end
  end
end
