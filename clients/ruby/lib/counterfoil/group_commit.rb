# frozen_string_literal: true

class Counterfoil
  # Lets threads share calls. A lone thread makes its call at once. Those that come while a call is under way wait, and then
  # one of them makes the next call for all.
  class GroupCommit
    # items of one call
    LIMIT = 1000
    # Items that share a call, which is set before it is sent.
    Batch = Struct.new(:items, :call)
    private_constant :Batch

    # @param prepare [#call] receives items, and returns a call
    # @param perform [#call] receives a call and its items, makes the call, and sets the results of the items. If a thread is
    #   interrupted, another one performs the same call again
    def initialize(prepare, perform)
      @prepare, @perform, @mutex = prepare, perform, Mutex.new
    end

    # Returns when the item has its result.
    def call(item)
      # a Timeout or the end of the thread must not come between two changes of the state
      Thread.handle_interrupt(Exception => :on_blocking) do
        @mutex.synchronize do
          start_anew if @pid != Process.pid # after a fork the calls under way are the parent's
          @waiting << item
        end
        lead while turn?(item)
      ensure
        @mutex.synchronize { @waiting.reject! { |one| one.equal?(item) } } unless item.is_done
      end
    end

    private

    def start_anew
      @pid, @waiting, @is_busy, @batch, @changed = Process.pid, [], false, nil, ConditionVariable.new
    end

    # Waits while another thread makes a call.
    #
    # @return [Boolean, nil] true if it is this thread's turn to make one, as the item has no result
    def turn?(item)
      @mutex.synchronize do
        @changed.wait(@mutex) while @is_busy && !item.is_done
        @is_busy = true unless item.is_done
      end
    end

    def lead
      batch = @batch ||= Batch.new(@mutex.synchronize { @waiting.shift(LIMIT) })
      make(batch)
      batch.items.each { |item| item.is_done = true }
    ensure
      Thread.handle_interrupt(Exception => :never) do
        @mutex.synchronize do
          @batch = nil if batch.nil? || batch.items.size == 1 || batch.items.all?(&:is_done)
          @is_busy = false
          @changed.broadcast
        end
      end
    end

    def make(batch)
      batch.call ||= @prepare.call(batch.items)
      @perform.call(batch.call, batch.items)
    rescue Error => error
      batch.items.each { |item| item.result = error }
    end
  end
end
