# frozen_string_literal: true

require "securerandom"

class Counterfoil
  # A pool of caller names. A name has one call in flight. The numbers of its calls grow by random steps, so that two machines that
  # were resumed from one snapshot use different numbers.
  class Callers
    # `n` is the number of the call.
    Caller = Struct.new(:name, :n, :pid)
    MAX_N = 2**53
    MAX_STEP = 2**20
    private_constant :MAX_N, :MAX_STEP

    def initialize
      @mutex, @free = Lock.new, []
    end

    # @return [Caller] for the next call
    def take
      caller = @mutex.synchronize { @free.pop }
      # after a fork the other names are the parent's
      caller = Caller.new(SecureRandom.hex(8), 0, Process.pid) if caller.nil? || caller.pid != Process.pid
      step(caller)
    end

    # Takes back a caller whose call is settled. The caller of a call with an unknown outcome is not given back: the call may still
    # arrive, or another process may use the name.
    def give_back(caller)
      @mutex.synchronize { @free << caller } if caller.n <= MAX_N - MAX_STEP
    end

    # @return [Caller] with the number of its next call
    def step(caller)
      caller.n += 1 + SecureRandom.random_number(MAX_STEP)
      caller
    end
  end
end
