# frozen_string_literal: true

class Counterfoil
  # Lets threads share calls. A lone thread makes its call at once. Those that come while a call is under way share the next
  # one: one of them leads, the others wait.
  class GroupCommit
    # items of one call
    LIMIT = 1000
    # The threads that share a call, and their items. `call` is set before it is sent.
    Batch = Struct.new(:waiters, :items, :call)
    # A thread and its item. `leads` is the batch whose call it makes, `turn` wakes it.
    Waiter = Struct.new(:item, :turn, :leads, :is_gone)
    # an interrupt must not come between two changes of the state
    ON_BLOCKING = { Exception => :on_blocking }.freeze
    NEVER = { Exception => :never }.freeze
    private_constant :Batch, :Waiter, :ON_BLOCKING, :NEVER

    # @param prepare [#call] receives items, and returns a call
    # @param perform [#call] receives a call and its items, makes the call, and sets the results of the items. It is called
    #   again if the thread was interrupted
    def initialize(prepare, perform)
      @prepare, @perform, @mutex, @waiting = prepare, perform, Mutex.new, []
    end

    # Returns when the item has its result.
    def call(item)
      Thread.handle_interrupt(ON_BLOCKING) do
        waiter = Waiter.new(item)
        waiter.turn.pop unless enter(waiter)
        lead(waiter.leads, waiter) if waiter.leads
        is_done = true
      ensure
        # after a Timeout, which may be a throw, or the end of the thread another one makes the call
        Thread.handle_interrupt(NEVER) { @mutex.synchronize { leave(waiter) } } unless is_done
      end
    end

    private

    # @return [Batch, nil] the batch to lead, if no call is under way
    def enter(waiter)
      @mutex.synchronize do
        if @busy == Process.pid # after a fork those calls are the parent's
          waiter.turn = Thread::Queue.new
          @waiting << waiter
          nil
        else
          @busy, @waiting = Process.pid, []
          waiter.leads = Batch.new([waiter])
        end
      end
    end

    def lead(batch, waiter)
      @mutex.synchronize { batch.waiters.concat(@waiting.shift(LIMIT - 1)) } unless batch.call || @waiting.empty?
      batch.items ||= batch.waiters.map(&:item)
      make(batch)
      Thread.handle_interrupt(NEVER) { @mutex.synchronize { finish(batch, waiter) } }
    end

    def make(batch)
      batch.call ||= @prepare.call(batch.items)
      @perform.call(batch.call, batch.items)
    rescue Error => error
      batch.items.each { |item| item.result = error }
    end

    def finish(batch, waiter)
      batch.waiters.each { |one| one.turn&.push(true) unless one.equal?(waiter) }
      waiter.leads = nil
      promote_next
    end

    def leave(waiter)
      waiter.is_gone = true
      @waiting.reject! { |one| one.equal?(waiter) }
      return unless waiter.leads

      heir = waiter.leads.waiters.find { |one| !one.is_gone }
      heir ? promote(heir, waiter.leads) : promote_next
    end

    def promote_next
      first = @waiting.shift
      first ? promote(first, Batch.new([first])) : @busy = nil
    end

    def promote(waiter, batch)
      waiter.leads = batch
      waiter.turn << true
    end
  end
end
