# frozen_string_literal: true

class Counterfoil
  # Sums in this process, which a thread sends. Those of a family are numbers by key, which its `count_sums` counts.
  class Later
    LIMIT = 100_000
    PAUSE = 1
    AT_END = 5 # seconds that the end of a process may wait
    AGAIN = 0.5
    ATTEMPT = 1 # seconds by which an attempt may end later than its call, as one of a client of the application
    # A sum that was not counted.
    Failed = Struct.new(:error, :counters, :key, :number) do
      # it may be counted later
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

    # Sends all sums for the last time, in a few seconds. Those that are left are dropped.
    def finish
      @is_over = true # what another block of at_exit adds is sent at once
      @mutex.synchronize { forked? ? start_anew : @thread&.kill } # when it has sent what it took
      began, left = Limit.now, @left
      sending = send_aside(left) { send_to_the_end }
      sending.join(left)
      @left -= Limit.now - began
      give_up(sending.alive? ? [] : sending.value)
      raise_first([])
    end

    private

    def forked? = @pid != Process.pid

    # a fork: these sums are the parent's
    def start_anew
      @pid, @sums, @under_way, @error, @dropped, @thread = Process.pid, no_sums, no_sums, nil, Hash.new(0), nil
      @waiting, @sending, @causes = ConditionVariable.new, Lock.new, []
    end

    # for each family the sums of its keys
    def no_sums = Hash.new { |sums, counters| sums[counters] = Hash.new(0) }

    def size = [@under_way, @sums].sum { |sums| sums.sum { |_, own| own.size } }

    def start_thread
      @at_exit ||= at_exit do # first, since an interrupt may follow
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

    # an own thread: handle_interrupt does not hold back what a signal handler raises in the main thread
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

    # @return [Array<Failed>] sums that stay
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
    rescue StandardError => error # of the application, such as that of a pool's block
      sums.map { |sum| Failed.new(OutcomeUnknown.new(error.class.name, error.message), counters, *sum) }
    end

    # Warns once when sums begin to wait: the application may not learn it otherwise.
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

    # Drops what the end of the process leaves. What is under way has an unknown outcome.
    #
    # @param kept [Array<Failed>] with the errors of some
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
