# frozen_string_literal: true

require "securerandom"

class Counterfoil
  # A pool of caller names. A name has one call in flight, and its calls have growing numbers.
  class Callers
    # `n` is the number of the call.
    Caller = Struct.new(:name, :n, :pid)

    def initialize
      @mutex, @free = Mutex.new, []
    end

    # @return [Caller] for the next call
    def take
      caller = @mutex.synchronize { @free.pop }
      # after a fork the other names are the parent's
      caller = Caller.new(SecureRandom.hex(8), 0, Process.pid) if caller.nil? || caller.pid != Process.pid
      caller.n += 1
      caller
    end

    # Takes back a caller whose call is settled. A repeat of another one may still arrive, so its name is not used again.
    def give_back(caller) = @mutex.synchronize { @free << caller }

    # Draws new names from now on. A copy of a machine has the same ones, and has lost its connections.
    def forget = @mutex.synchronize { @free = [] }
  end
end
