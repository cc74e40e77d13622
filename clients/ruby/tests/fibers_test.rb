# frozen_string_literal: true

require_relative "helper"

# Fibers of a scheduler, such as tasks of async and requests of Falcon.
class FibersTest < ClientTest
  # A scheduler that resumes in turn all fibers that may go on.
  class Scheduler
    def initialize
      @waits, @unblocked, @start = {}, {}, now
    end

    # Ruby calls it at the end of the thread.
    def close
      until @waits.empty?
        @waits.to_a.each { |fiber, is_over| fiber.resume if @waits.key?(fiber) && is_over.call }
        now < @start + 20 ? Thread.pass : raise("a fiber waits for ever")
      end
    end

    def fiber(&block) = Fiber.new(blocking: false, &block).tap(&:resume)

    def io_wait(io, events, seconds)
      wait(seconds) { (events & IO::READABLE).zero? || io.wait_readable(0) } ? events : false
    end

    def kernel_sleep(seconds = nil) = block(nil, seconds)

    def block(_, seconds = nil)
      fiber = Fiber.current
      wait(seconds) { @unblocked.delete(fiber) }
    end

    def unblock(_, fiber) = @unblocked[fiber] = true

    private

    def now = Process.clock_gettime(Process::CLOCK_MONOTONIC)

    def wait(seconds)
      fiber, start, is_over = Fiber.current, now, nil
      @waits[fiber] = -> { (is_over = yield) || (seconds && now > start + seconds) }
      Fiber.yield
      is_over
    ensure
      @waits.delete(fiber)
    end
  end

  def in_fibers
    thread = Thread.new { Fiber.set_scheduler(Scheduler.new).then { yield } }
    thread.report_on_exception = false
    thread.join
  end

  def clients
    [@redis, RedisClient.new(path: SOCKET, timeout: 1), ConnectionPool.new(size: 2) { Redis.new(path: SOCKET, timeout: 1) }].map { |redis| client(redis) }
  end

  def test_fibers_share_calls
    clients.each.with_index do |client, i|
      views, votes, id, results, values = client.buffered("views"), client.cached("votes") { sleep(0.1) && 5 }, "#{@id}/#{i}", [], []
      in_fibers do
        16.times { Fiber.schedule { 10.times { results << views.add(id) } } }
        16.times { Fiber.schedule { 10.times { views.later("#{id}/later") }.then { views.flush } } }
      end
      # without other fibers: one that counts in a loop may starve these until their time is over
      in_fibers { 16.times { Fiber.schedule { values << votes.incr(id) } } }
      assert_equal [*1..160], results.sort
      assert_equal [*6..21], values.sort
      assert_equal 160, views.value("#{id}/later")
    end
  end

  def test_fibers_that_are_stopped_hold_up_no_other
    return puts("the test of stopped fibers is skipped: it needs Ruby 3.3") if RUBY_VERSION < "3.3"

    clients.each.with_index do |client, i|
      views, id, begun, counted = client.buffered("views"), "#{@id}/#{i}", 0, 0
      views.add(id, 0)
      in_fibers do
        fibers = Array.new(32) do
          Fiber.schedule do
            20.times { (begun += 1).then { views.add(id) }.then { counted += 1 } }
          rescue Stop
            nil
          end
        end
        fibers.first(16).each { |fiber| Fiber.schedule { sleep(rand * 0.02).then { fiber.raise(Stop) if fiber.alive? } } }
      end
      assert_operator counted, :>=, 320
      assert_includes counted..begun, views.value(id)
    end
  end
end
