# frozen_string_literal: true

class Counterfoil
  # Lets threads share calls. A thread joins the open batch. If no call is under way, it closes the batch and makes its call. Threads
  # that arrive meanwhile share the next batch.
  class GroupCommit
    # items of one call
    LIMIT = 1000
    # Items that share a call. `call` is set before it is sent. `turn` wakes the threads that wait. `present` has the items whose
    # threads have not left, by identity, since structs with the same members are equal. `limit` is the deadline of the first item.
    Batch = Struct.new(:items, :call, :is_done, :turn, :present, :limit)
    # An interrupt must not come between a reply and the results, nor between two changes of the state. `Object` also stands for
    # Thread#kill, which is not an exception.
    ON_BLOCKING = { Object => :on_blocking }.freeze
    NEVER = { Object => :never }.freeze
    private_constant :ON_BLOCKING, :NEVER

    # @yieldparam batch [Batch] whose call the block makes, and whose items get their results. If the thread is interrupted, e.g. by
    #   a Timeout, another thread of the batch makes the same call again.
    def initialize(&count)
      @count, @mutex = count, Lock.new
    end

    # Returns when the item has its result.
    def call(item)
      batch = nil
      Thread.handle_interrupt(ON_BLOCKING) do
        @mutex.synchronize { join(batch = newest, item) }
        take_turn(item, batch) until batch.is_done
      ensure
        give_up(item, batch) if batch && !batch.is_done
      end
    end

    private

    # @return [Batch] the open batch, or a new one
    def newest
      start_anew if @pid != Process.pid
      batch = @batches.last
      is_open = batch && !batch.call && batch.items.size < LIMIT
      is_open ? batch : Batch.new([], nil, false, nil, {}.compare_by_identity, Limit.at)
    end

    def join(batch, item)
      @batches << batch unless @batches.last.equal?(batch)
      batch.present[item] = true
      batch.items << item
    end

    # Waits until the batch is done, or no call is under way. In this case it makes the call of the oldest batch.
    def take_turn(item, batch)
      oldest = nil
      @mutex.synchronize do
        (batch.turn ||= ConditionVariable.new).wait(@mutex) while @leader && !batch.is_done
        oldest, @leader = @batches.first, item unless batch.is_done
      end
      lead(oldest) if oldest
    ensure
      # twice, since handle_interrupt does not hold back what a signal handler raises in the main thread
      begin
        leave(item, oldest)
      ensure
        leave(item, oldest)
      end
    end

    # Leaves the batch to its other threads, and passes on the turn: the thread may have been woken just before.
    def give_up(item, batch)
      Thread.handle_interrupt(NEVER) do
        @mutex.synchronize do
          batch.present.delete(item)
          remove(batch) if batch.present.empty?
          @batches.first&.turn&.signal unless @leader
        end
      end
    end

    # in a fork: the parent goes on with the calls that were under way
    def start_anew
      @pid, @batches, @leader = Process.pid, [], nil
    end

    def lead(batch)
      Thread.pass if @is_shared # the threads of the previous call may count again at once, and join this batch
      @mutex.synchronize { remove(batch) }
      @is_shared = batch.items.size > 1
      Limit.until(batch.limit) { @count.call(batch) }
      batch.is_done = true
    end

    # Wakes the threads that shared the call, and one of the next batch, which makes its call. After an interrupt the next batch is
    # this one, with the same call.
    def leave(item, batch)
      return unless @leader.equal?(item)

      Thread.handle_interrupt(NEVER) do
        @mutex.synchronize do
          remove(batch)
          @batches.unshift(batch) unless batch.is_done || batch.present.empty?
          batch.turn&.broadcast if batch.is_done
          @batches.first&.turn&.signal
          @leader = nil
        end
      end
    end

    # compares by identity, since structs with the same members are equal
    def remove(batch) = @batches.reject! { |other| other.equal?(batch) }
  end
end
