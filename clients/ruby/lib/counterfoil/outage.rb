# frozen_string_literal: true

class Counterfoil
  # The state of a server that may be unavailable, or of a family that may not be configured. During an outage calls fail at once, and
  # it is probed every second: by a thread, or by one of the calls.
  class Outage
    EVERY = 1
    # `cause` is the exception of the Redis library
    Beginning = Struct.new(:reason, :text, :cause, :at)
    private_constant(*constants(false))

    # @param server [String, nil] its name in messages
    def initialize(server = nil)
      @server, @mutex = server, Lock.new
    end

    # Begins the outage.
    #
    # @param reason [String] the reason of the error of a call whose limit has passed
    # @param text [String] its explanation for people
    # @yieldreturn [Boolean] true if the outage is over. Without a block one call each second is the probe
    def start(reason, text, cause = nil, &probe)
      @probe, @next_at, @beginning = probe, Limit.now + EVERY, @beginning || Beginning.new(reason, text, cause, Limit.now)
      watch if probe
    end

    def stop
      @thread&.kill
      @beginning = nil
    end

    # Raises what calls get during an outage.
    #
    # @param is_lost [Boolean] an earlier arrival of the call may have been executed
    def check(is_lost = false)
      beginning = @beginning
      return if beginning.nil? || (!@probe && due?)

      watch if @probe && !@thread&.alive? # in a fork the parent's thread does not run
      reason, text = beginning.reason, message(beginning)
      raise is_lost ? OutcomeUnknown.new(reason, text) : NotCounted.new(reason, text, temporary: true), cause: beginning.cause
    end

    private

    # @return [Boolean] true for one call each second, which is the probe
    def due? = @mutex.synchronize { Limit.now >= @next_at && @next_at = Limit.now + EVERY }

    def message(beginning)
      return beginning.text unless @server

      state, seconds = beginning.reason == UNREACHABLE ? "unreachable" : "unavailable", (Limit.now - beginning.at).to_i
      "#{@server} #{seconds.zero? ? "is #{state}" : "has been #{state} for #{seconds} s"}: #{beginning.text}"
    end

    def watch
      @mutex.synchronize { @thread = Thread.new { probe_until_available } unless @thread&.alive? }
    end

    # The thread that starts this one may hold back interrupts, and a new thread inherits that. Then the end of the process could not
    # end this thread, so interrupts are allowed here.
    def probe_until_available
      Thread.handle_interrupt(Object => :immediate) do
        Thread.current.report_on_exception = false # calls raise the errors of an application's pool themselves
        sleep(EVERY)
        sleep(EVERY) until @probe.call
      end
    ensure
      @beginning = nil
    end
  end
end
