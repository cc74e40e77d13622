# frozen_string_literal: true

require "securerandom"

class Counterfoil
  # A pool of caller names. A name has one call in flight, and its calls have growing numbers.
  class Callers
    def initialize
      @mutex = Mutex.new
      @free = []
      @pid = Process.pid
    end

    # Yields a caller's name and the number of its next call. A name whose call ends without a reply is not used again.
    def use
      name, n = take
      result = yield(name, n + 1)
      @mutex.synchronize { @free << [name, n + 1] }
      result
    end

    private

    def take
      @mutex.synchronize do
        @free.clear if @pid != Process.pid # a fork: these names are the parent's
        @pid = Process.pid
        @free.pop || [SecureRandom.hex(8), 0]
      end
    end
  end
end
