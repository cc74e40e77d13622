# frozen_string_literal: true

class Counterfoil
  # Lets threads share calls. A thread joins the open batch. If no call is under way it closes the batch and makes its call; those
  # that come meanwhile share the next one.
  class GroupCommit
    # items of one call
    LIMIT = 1000
    # Items that share a call. `call` is set before it is sent, `turn` wakes those that wait.
    Batch = Struct.new(:items, :call, :is_done, :turn)
    # seconds after which a thread looks itself, if one that was interrupted did not wake it
    PATIENCE = 1
    # an interrupt must not come between a reply and the results, nor between two changes of the state
    ON_BLOCKING = { Exception => :on_blocking }.freeze
    NEVER = { Exception => :never }.freeze
    private_constant :PATIENCE, :ON_BLOCKING, :NEVER

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

    # Joins the open batch, and waits until its items have results or its call is to be made.
    def enter(item)
      start_anew if @pid != Process.pid
      batch = @open ||= Batch.new([])
      batch.items << item
      @open = nil if batch.items.size == LIMIT
      (batch.turn ||= ConditionVariable.new).wait(@mutex, PATIENCE) while @is_busy && !batch.is_done
      @is_busy = true unless batch.is_done
      batch
    end

    # after a fork the calls that were under way are the parent's
    def start_anew
      @pid, @open, @is_busy = Process.pid, nil, false
    end

    def lead(batch)
      Thread.pass if @is_shared # threads of the call before may count again: they join
      @mutex.synchronize { @open = nil if batch.equal?(@open) }
      @is_shared = batch.items.size > 1
      @count.call(batch)
      batch.is_done = true
    ensure
      Thread.handle_interrupt(NEVER) { @mutex.synchronize { leave(batch) } }
    end

    # Wakes those that shared the call, and one that makes the next one.
    def leave(batch)
      @is_busy = false
      batch.turn&.broadcast
      @open&.turn&.signal
    end
  end
end
