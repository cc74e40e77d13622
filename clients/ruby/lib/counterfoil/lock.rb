# frozen_string_literal: true

class Counterfoil
  # A Mutex for threads that may be interrupted, e.g. by a Timeout. An unlock wakes one of the threads that wait. If that thread is
  # interrupted before it has the lock, a plain Mutex or Monitor wakes no other one, and the others wait for ever.
  class Lock < Thread::Mutex
    alias try_enter try_lock
    alias exit unlock

    # Yields, and after an interrupt wakes one of the threads that wait.
    #
    # @param lock [Lock, Monitor] that the block takes and releases
    def self.waking(lock)
      is_done = false
      yield.tap { is_done = true }
    ensure
      Thread.handle_interrupt(Object => :never) { lock.try_enter && lock.exit } unless is_done
    end

    def synchronize = Lock.waking(self) { super }
  end
end
