# frozen_string_literal: true

class Counterfoil
  # Lets threads share calls. A lone thread makes its call at once. Those that come while a call is under way wait, and then
  # one of them makes the next call for all.
  class GroupCommit
    # items of one call
    LIMIT = 1000
    # Items that share a call, which is set before it is sent.
    Batch = Struct.new(:items, :call)
    # a Timeout or the end of the thread must not come between two changes of the state
    ON_BLOCKING = { Exception => :on_blocking }.freeze
    NEVER = { Exception => :never }.freeze
    private_constant(*constants(false) - [:LIMIT])

    # @param prepare [#call] receives items, and returns a call
    # @param perform [#call] receives a call and its items, makes the call, and sets the results of the items. If a thread is
    #   interrupted, another one performs the same call again
    def initialize(prepare, perform)
      @prepare, @perform, @mutex = prepare, perform, Mutex.new
    end

    # Returns when the item has its result.
    def call(item)
      Thread.handle_interrupt(ON_BLOCKING) do
        while (batch = next_batch(item))
          lead(batch)
        end
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
    # @return [Batch, nil] what this thread has to send, nil if the item has its result
    def next_batch(item)
      @mutex.synchronize do
        start_anew if @pid != Process.pid # after a fork the calls under way are the parent's
        @waiting << item if item.is_done.nil?
        item.is_done ||= false
        @changed.wait(@mutex) while @is_busy && !item.is_done
        return if item.is_done

        @is_busy = true
        @batch ||= Batch.new(@waiting.shift(LIMIT))
      end
    end

    def lead(batch)
      make(batch)
      batch.items.each { |item| item.is_done = true }
    ensure
      Thread.handle_interrupt(NEVER) do
        @mutex.synchronize do
          # after an interrupt another thread goes on, if there is one
          @batch = nil if batch.items.size == 1 || batch.items[0].is_done
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
