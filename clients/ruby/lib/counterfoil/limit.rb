# frozen_string_literal: true

class Counterfoil
  # The time until which a call of this thread or fiber repeats what it sends.
  module Limit
    # @return [Float] seconds of the monotonic clock
    def self.now = Process.clock_gettime(Process::CLOCK_MONOTONIC)

    # @return [Float, nil] when the current call ends
    def self.at = Thread.current[:counterfoil_limit]

    def self.within(seconds, &block) = self.until(now + seconds, &block)

    # Yields. A call within another one ends with it.
    def self.until(time)
      outer = at
      Thread.current[:counterfoil_limit] = [outer, time].compact.min
      yield
    ensure
      # twice, since an interrupt may come in between
      begin
        Thread.current[:counterfoil_limit] = outer
      ensure
        Thread.current[:counterfoil_limit] = outer
      end
    end
  end
end
