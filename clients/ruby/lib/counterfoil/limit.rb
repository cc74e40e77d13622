# frozen_string_literal: true

class Counterfoil
  # The deadline of the calls of this thread or fiber: until then a call is repeated.
  module Limit
    # @return [Float] seconds of the monotonic clock
    def self.now = Process.clock_gettime(Process::CLOCK_MONOTONIC)

    # @return [Float, nil] the deadline of the current call
    def self.at = Thread.current[:counterfoil_limit]

    def self.within(seconds, &block) = self.until(now + seconds, &block)

    # Yields, with a deadline for the calls in the block. Inside of another block the earlier deadline holds.
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
