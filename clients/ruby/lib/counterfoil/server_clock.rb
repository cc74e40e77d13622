# frozen_string_literal: true

class Counterfoil
  # The clock of Redis, for calls whose keys or arguments depend on the time.
  class ServerClock
    ROUNDS = 5
    private_constant :ROUNDS

    # Yields the time in Unix milliseconds, and once more with Redis's time if the reply is `OUTSIDE`.
    #
    # @return [Array] the reply
    def call
      ROUNDS.times do
        reply = yield(local_ms + (@ahead_ms || 0))
        return reply unless reply[0] == "OUTSIDE"

        @ahead_ms = Integer(reply[1]) - local_ms
      end
      raise NotCounted.new("OUTSIDE", "the clocks of this machine and of Redis drift apart", temporary: true)
    end

    private

    def local_ms = Process.clock_gettime(Process::CLOCK_REALTIME, :millisecond)
  end
end
