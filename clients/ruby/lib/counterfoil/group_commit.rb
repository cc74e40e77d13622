# frozen_string_literal: true

class Counterfoil
  # Lets threads share calls. A thread joins the open batch. If no call is under way it closes the batch and makes its call; those
  # that come meanwhile share the next one.
  class GroupCommit
    # items of one call
    LIMIT = 1000
    # Items that share a call. `call` is set before it is sent, `turn` wakes the threads that wait, `waiting` is their number.
    Batch = Struct.new(:items, :call, :is_done, :turn, :waiting)
    # An interrupt must not come between a reply and the results, nor between two changes of the state. Object includes kill.
    ON_BLOCKING = { Object => :on_blocking }.freeze
    NEVER = { Object => :never }.freeze
    private_constant :ON_BLOCKING, :NEVER

    # @yieldparam batch [Batch] whose call the block makes, and whose items get their results. If the thread is interrupted, e.g. by
    #   a Timeout, another thread of the batch makes the same call again.
    def initialize(&count)
      @count, @mutex = count, Mutex.new
    end

    # Returns when the item has its result.
    def call(item)
      Thread.handle_interrupt(ON_BLOCKING) do
        batch = @mutex.synchronize { enter(item) }
        lead(batch) unless batch.is_done
      end
    end

    private

    # Joins the newest batch, and waits until its items have results or its call is to be made.
    def enter(item)
      start_anew if @pid != Process.pid
      batch = @batches.last
      @batches << batch = Batch.new([], nil, false, nil, 0) if batch.nil? || batch.call || batch.items.size == LIMIT
      batch.items << item
      wait(batch) while @is_busy && !batch.is_done
      @is_busy = true unless batch.is_done
      batch
    end

    def wait(batch)
      is_woken = false
      batch.waiting += 1
      (batch.turn ||= ConditionVariable.new).wait(@mutex)
      is_woken = true
    ensure
      batch.waiting -= 1
      give_up(batch) unless is_woken
    end

    # Passes on the turn of a thread that was interrupted: it may have been woken just before.
    def give_up(batch)
      remove(batch) if batch.waiting.zero?
      @batches.first&.turn&.signal unless @is_busy
    end

    # after a fork the calls that were under way are the parent's
    def start_anew
      @pid, @batches, @is_busy = Process.pid, [], false
    end

    def lead(batch)
      Thread.pass if @is_shared # threads of the call before may count again: they join
      @mutex.synchronize { remove(batch) }
      @is_shared = batch.items.size > 1
      @count.call(batch)
      batch.is_done = true
    ensure
      Thread.handle_interrupt(NEVER) { @mutex.synchronize { leave(batch) } }
    end

    # Wakes those that shared the call, and one that makes the next one. After an interrupt that is the same call.
    def leave(batch)
      @is_busy = false
      @batches.unshift(batch) unless batch.is_done || batch.waiting.zero?
      batch.turn&.broadcast if batch.is_done
      @batches.first&.turn&.signal
    end

    # by identity: structs with the same members are equal
    def remove(batch) = @batches.reject! { |other| other.equal?(batch) }
  end
end
