# frozen_string_literal: true

class Counterfoil
  # The state of a server that may be unavailable. During an outage calls fail at once, and a thread probes the server every second.
  class Outage
    EVERY = 1
    # `cause` is the exception of the library
    Beginning = Struct.new(:reason, :text, :cause, :at)
    private_constant(*constants(false))

    # @param server [String] its name in messages
    def initialize(server)
      @server, @mutex = server, Lock.new
    end

    # @param reason [String] why the limit of a call passed
    # @param text [String] the same for people
    # @yieldreturn [Boolean] true if the server is available again
    def start(reason, text, cause = nil, &probe)
      @probe, @beginning = probe, @beginning || Beginning.new(reason, text, cause, Limit.now)
      watch
    end

    # @return [Boolean] there was one
    def stop
      is_on = !@beginning.nil?
      @thread&.kill
      @beginning = nil
      is_on
    end

    # Raises what calls get during an outage.
    #
    # @param is_lost [Boolean] an earlier arrival of the call may have been executed
    def check(is_lost = false)
      beginning = @beginning
      return unless beginning

      watch unless @thread&.alive? # a fork has no threads of its parent
      state = beginning.reason == UNREACHABLE ? "unreachable" : "unavailable"
      text = "#{@server} has been #{state} for #{(Limit.now - beginning.at).round} s: #{beginning.text}"
      error = is_lost ? OutcomeUnknown.new(beginning.reason, text) : NotCounted.new(beginning.reason, text, temporary: true)
      raise error, cause: beginning.cause
    end

    private

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
