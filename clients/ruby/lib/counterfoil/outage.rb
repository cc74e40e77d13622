# frozen_string_literal: true

class Counterfoil
  # The state of a server that may be unavailable, or of a family that may not be configured. During an outage calls fail at once, and
  # it is probed every second: by a thread, or by one of the calls.
  class Outage
    EVERY = 1
    # `cause` is the exception of the library
    Beginning = Struct.new(:reason, :text, :cause, :at)
    private_constant(*constants(false))

    # @param server [String, nil] its name in messages
    def initialize(server = nil)
      @server, @mutex = server, Lock.new
    end

    # @param reason [String] why the limit of a call passed
    # @param text [String] the same for people
    # @yieldreturn [Boolean] true if it is over. Without a block a call is the probe
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

      watch if @probe && !@thread&.alive? # a fork has no threads of its parent
      reason, text = beginning.reason, message(beginning)
      raise is_lost ? OutcomeUnknown.new(reason, text) : NotCounted.new(reason, text, temporary: true), cause: beginning.cause
    end

    private

    # @return [Boolean] for one call in a second
    def due? = @mutex.synchronize { Limit.now >= @next_at && @next_at = Limit.now + EVERY }

    def message(beginning)
      return beginning.text unless @server

      state, seconds = beginning.reason == UNREACHABLE ? "unreachable" : "unavailable", (Limit.now - beginning.at).to_i
      "#{@server} #{seconds.zero? ? "is #{state}" : "has been #{state} for #{seconds} s"}: #{beginning.text}"
    end

    def watch
      @mutex.synchronize { @thread = Thread.new { probe_until_available } unless @thread&.alive? }
    end

    # The thread that begins it may hold back interrupts, which its threads inherit. A process would wait for this one.
    def probe_until_available
      Thread.handle_interrupt(Object => :immediate) do
        Thread.current.report_on_exception = false # calls get what an application's pool raises
        sleep(EVERY)
        sleep(EVERY) until @probe.call
      end
    ensure
      @beginning = nil
    end
  end
end
