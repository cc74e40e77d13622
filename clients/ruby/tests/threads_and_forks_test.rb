# frozen_string_literal: true

require_relative "helper"
require "socket"
require "timeout"

class ThreadsAndForksTest < ClientTest
  def test_threads_share_calls
    @views.add(@id)
    executed = calls("EVALSHA") do
      @redis.call("CLIENT", "PAUSE", 900, "WRITE")
      threads = Array.new(64) { Thread.new { @views.add(@id) } }
      Thread.pass until threads.all?(&:stop?)
      Redis.new(path: SOCKET).call("CLIENT", "UNPAUSE")
      threads.each(&:join)
    end
    assert_equal 65, @views.value(@id)
    assert_operator executed, :<, 32
  end

  def test_a_lone_call_goes_out_by_itself
    @views.add(@id)
    assert_equal(10, calls("EVALSHA") { 10.times { @views.add(@id) } })
  end

  def test_threads_leave_few_callers
    before = callers
    50.times { |i| Thread.new { @views.add("#{@id}/#{i}") }.join }
    assert_operator (callers - before).size, :<=, 1
  end

  def test_a_fork_before_the_first_call
    assert_equal 1, in_child { @views.add(@id) }
    assert_equal 2, @views.add(@id)
    assert_equal 3, in_child { @views.add(@id) }
  end

  def test_forks_after_the_first_call
    @views.add(@id)
    before = callers
    children = Array.new(4) { Thread.new { in_child { Array.new(5) { @views.add(@id) }.size } } }
    5.times { @views.add(@id) }
    assert_equal [5] * 4, children.map(&:value)
    assert_equal 26, @views.value(@id)
    assert_equal 4, (callers - before).size
  end

  def test_a_fork_while_other_threads_count
    is_over = false
    threads = Array.new(8) { Thread.new { (@views.add(@id) && 1) until is_over } }
    results = Array.new(5) { in_child { @views.add("#{@id}/child") } }
    is_over = true
    threads.each(&:join)
    assert_equal [1, 2, 3, 4, 5], results
  end

  def test_an_interrupted_thread_leaves_the_call_to_the_others
    slow = Object.new
    redis = @redis
    slow.define_singleton_method(:with) { |&block| block.call(self) }
    slow.define_singleton_method(:call_v) { |command| sleep(0.3).then { redis.call(*command) } }
    views = client(slow).buffered("views")
    views.add(@id)
    threads = Array.new(5) { |i| Thread.new { sleep(i * 0.05).then { views.add(@id) } } }
    sleep(0.1)
    threads[0].kill # the thread that makes the call
    sleep(0.35)
    threads[1].kill # the thread that makes the next call
    assert_equal [Integer, Integer, Integer], threads.drop(2).map { |thread| (thread.value || 0).class }
    assert_includes 4..6, views.value(@id)
  end

  # A client that cannot connect until `state[:up]`.
  def unreachable(state)
    redis = @redis
    Object.new.tap do |client|
      client.define_singleton_method(:with) { |&block| block.call(self) }
      client.define_singleton_method(:call_v) { |command| state[:up] ? redis.call(*command) : raise(Redis::CannotConnectError, "down") }
    end
  end

  def now = Process.clock_gettime(Process::CLOCK_MONOTONIC)

  # also calls that wait for one that is under way
  def test_an_outage_ends_all_calls
    state, began = { up: true }, now
    views = client(unreachable(state), retry_for: 0.5, is_own: true).buffered("views")
    views.add(@id)
    state[:up] = false
    results = Array.new(16) { |i| Thread.new { sleep(i * 0.03).then { result_of { views.add(@id) } } } }.map(&:value)
    assert_operator now - began, :<, 1.5
    assert_equal ["Counterfoil::NotCounted: UNREACHABLE"], results.map { |result| result[/\A\S+ \w+/] }.uniq
    began = now
    20.times { assert_match(/Redis (is unreachable|has been unreachable for [1-9]\d* s): down/, result_of { views.add(@id) }) }
    assert_operator now - began, :<, 0.2
    state[:up] = true
    sleep(0.05) while (result = result_of { views.add(@id) }).is_a?(String) && now < began + 5
    assert_equal 2, result
  end

  # one thread at a time may use these clients, so the others wait
  def test_an_outage_ends_calls_of_a_client_for_one_thread
    silent = TCPServer.new("127.0.0.1", 0)
    [Redis, RedisClient].each do |library|
      redis, began = library.new(host: "127.0.0.1", port: silent.addr[1], timeout: 0.3, reconnect_attempts: 0), now
      views = client(redis, retry_for: 0.5).buffered("views")
      results = Array.new(10) { Thread.new { result_of { views.add(@id) } } }.map(&:value)
      assert_operator now - began, :<, 1.2, library
      assert_equal ["Counterfoil::NotCounted: UNREACHABLE"], results.map { |result| result[/\A\S+ \w+/] }.uniq
    end
  ensure
    silent.close
  end

  def test_a_child_probes_by_itself
    state = {}
    views = client(unreachable(state), retry_for: 0, is_own: true).buffered("views")
    2.times { assert_match(/UNREACHABLE/, result_of { views.add(@id) }) }
    child = in_child do
      began, state[:up] = now, true
      sleep(0.05) while (result = result_of { views.add(@id) }).is_a?(String) && now < began + 5
      result
    end
    assert_equal 1, child
    assert_match(/Redis .* unreachable/, result_of { views.add(@id) })
  end

  # the reply to a call is EXPIRED, and its thread is killed while it asks for another epoch
  def test_a_name_is_given_back_once
    gate, asking = Queue.new, Queue.new
    slow, redis = Object.new, @redis
    slow.define_singleton_method(:with) { |&block| block.call(self) }
    slow.define_singleton_method(:call_v) do |command|
      command[5].end_with?(":requests") ? asking.push(Thread.current) && gate.pop : gate.pop
      redis.call(*command)
    end
    counterfoil = client(slow, is_own: true)
    views = counterfoil.buffered("views")
    2.times { gate << 1 }
    views.add(@id)
    asking.pop
    threads = Array.new(3) { Thread.new { result_of { views.add(@id) } }.tap { |thread| Thread.pass until thread.stop? } }
    views.instance_variable_get(:@family).epoch(0).now = "0" * 16
    2.times { gate << 1 }
    asking.pop.kill.join
    gate.close
    results = threads.filter_map(&:value)
    assert_equal names(counterfoil).uniq, names(counterfoil)
    assert_equal [Integer, Integer], results.map(&:class)
    assert_equal 5, views.add(@id)
  end

  # the names of callers without a call in flight
  def names(counterfoil = @counterfoil) = counterfoil.instance_variable_get(:@callers).instance_variable_get(:@free).map(&:name)

  def test_a_timeout_of_the_application
    views = client(RedisClient.new(path: SOCKET, timeout: 1)).buffered("views")
    views.add(@id)
    @redis.call("CLIENT", "PAUSE", "500", "ALL")
    assert_raises(Timeout::Error) { Timeout.timeout(0.1) { views.add(@id, 10) } }
    sleep(0.5)
    assert_includes [2, 12], views.add(@id)
  end

  def test_an_interrupted_thread_passes_on_its_turn
    replies = Queue.new
    shared = Counterfoil::GroupCommit.new { replies.pop }
    second = nil
    # the first thread wakes the second one, and interrupts it before it runs again
    first = Thread.new { shared.call(+"a").then { second.raise(Timeout::Error) } }
    Thread.pass until first.stop?
    second, third = Array.new(2) do
      Thread.new { shared.call(+"b") }.tap { |thread| Thread.pass until thread.stop? }
    end
    second.report_on_exception = false
    2.times { replies << "reply" }
    assert_raises(Timeout::Error) { second.join }
    assert third.join(20), "a thread waits although no call is under way"
  end

  # a thread makes the call of a batch whose threads have all left, and is interrupted, too
  def test_an_abandoned_call_holds_up_no_other
    begun, replies = Queue.new, Queue.new
    shared = Counterfoil::GroupCommit.new { begun.push(1).then { replies.pop } }
    waiting = ->(&block) { Thread.new(&block).tap { |thread| Thread.pass until thread.stop? } }
    next_call = -> { Timeout.timeout(20) { begun.pop } }
    first = waiting.call { shared.call(+"a") }
    next_call.call
    leader = waiting.call do
      shared.call(+"b")
    rescue Timeout::Error
      shared.call(+"c") # joins the next batch, and makes the call of "b" first
    end
    other = waiting.call { shared.call(+"b") }
    replies << "reply"
    first.join
    next_call.call
    last = waiting.call { shared.call(+"c") }
    leader.raise(Timeout::Error)
    next_call.call
    other.kill.join
    leader.kill.join
    replies << "reply"
    assert last.join(20), "a thread waits although no call is under way"
  end

  def test_an_interrupt_at_any_point_holds_up_no_other
    [true, false].each do |is_first|
      (1..).each do |point|
        begun, replies = Queue.new, Queue.new
        shared = Counterfoil::GroupCommit.new do |batch|
          begun << batch
          Thread.pass until Thread.main.stop? || batch.items != [:before] # until the main thread waits for this call
          replies.pop if batch.items.include?(:leader)
        end
        starting = ->(item) { Thread.new { shared.call(item) } }
        starting.call(:before) && begun.pop unless is_first
        is_interrupted = interrupted_at?(point) { shared.call(:interrupted) }
        leader, last = %i[leader last].map { |item| starting.call(item).tap { |thread| Thread.pass until thread.stop? } }
        leader.kill.join # no other thread of its batch is left
        replies.close
        assert last.join(20), "a thread waits although no call is under way: #{point}"
        break unless is_interrupted
      end
    end
  end

  def test_an_interrupt_at_any_point_of_a_call
    votes = @counterfoil.cached("votes") { 7 }
    votes.get(@id)
    (1..).each do |point|
      id = "#{@id}/#{point}"
      is_interrupted = interrupted_at?(point) { votes.incr(id) }
      thread = Thread.new { votes.incr(id) }
      assert thread.join(20), "a thread waits for ever: #{point}"
      assert_includes 8..9, thread.value
      break unless is_interrupted
    end
  end

  # the sums are sent at the end of the process, whichever point was interrupted
  def test_an_interrupt_at_any_point_of_the_first_later
    (1..).each do |point|
      views = client(@redis, later_every: 60).buffered("views")
      is_interrupted = interrupted_at?(point) { views.later(@id) }
      views.later(@id)
      later = views.instance_variable_get(:@later)
      assert later.instance_variable_get(:@at_exit), point
      later.send(:start_anew) # forgets the sums
      break unless is_interrupted
    end
  end

  def test_an_interrupted_call_counts_once
    @views.add(@id, 0)
    (1..).each do |point|
      batch = Counterfoil::GroupCommit::Batch.new([@views.send(:item, @id, 1)])
      is_interrupted = interrupted_at?(point) { @views.send(:count, 0, batch) }
      @views.send(:count, 0, batch) if is_interrupted # as another thread of the batch does
      assert_equal point, @views.add(@id, 0), point
      assert_equal names.uniq, names, point
      break unless is_interrupted
    end
  end

  # an unlock wakes one thread. If that one is interrupted then, Ruby wakes no other one
  def test_an_interrupted_thread_passes_on_a_lock
    lock, monitor = Counterfoil::Lock.new, Monitor.new
    takes = [->(&block) { lock.synchronize(&block) }, ->(&block) { Counterfoil::Lock.waking(monitor) { monitor.synchronize(&block) } }]
    takes.cycle(200) do |take|
      is_held = Queue.new
      holder = Thread.new { take.call { is_held.push(true) && sleep(0.003) } }
      is_held.pop
      first = Thread.new { Timeout.timeout(0.0025 + (rand * 0.001)) { take.call { nil } } rescue Timeout::Error }
      Thread.pass until first.stop?
      second = Thread.new { take.call { nil } }
      [holder, first, second].each { |thread| assert thread.join(20), "a thread waits for a lock that is free" }
    end
  end

  def test_interrupts_at_random
    counted = Array.new(16) do |i|
      Thread.new do
        Array.new(100) do
          i.even? ? @views.add(@id) : Timeout.timeout(rand * 0.004) { @views.add(@id) }
        rescue Timeout::Error
          nil
        end.compact.size
      end
    end
    counted = counted.sum { |thread| (thread.join(20) || flunk("a thread waits for ever")).value }
    assert_includes counted..1600, @views.value(@id)
  end

  # handle_interrupt does not hold back what a signal handler raises in the main thread
  def test_signals_at_random
    is_armed, signals, counted, is_over = false, 0, 0, false
    before = trap("ALRM") do
      was_armed, is_armed = is_armed, false
      raise Timeout::Error if was_armed
    end
    other = Thread.new { (@views.add("#{@id}/other") && 1) until is_over }
    sender = spawn(RbConfig.ruby, "-e", 'loop { Process.kill("ALRM", ARGV[0].to_i).then { sleep(rand * 0.002) } } rescue exit!', Process.pid.to_s)
    until signals == 500
      begin
        is_armed = true
        counted += 1 if @views.add(@id)
        is_armed = false
      rescue Timeout::Error
        signals += 1
      end
      flunk("the other thread waits for ever") unless other.alive?
    end
    Process.kill("KILL", sender)
    Process.wait(sender)
    is_over = true
    assert other.join(20), "the other thread waits for ever"
    assert_includes counted..counted + signals, @views.value(@id)
  ensure
    trap("ALRM", before || "DEFAULT")
  end

  def test_pools
    pools = [ConnectionPool.new(size: 2, timeout: 1) { Redis.new(path: SOCKET) },
             ConnectionPool::Wrapper.new(size: 2, timeout: 1) { Redis.new(path: SOCKET) },
             RedisClient.config(path: SOCKET).new_pool(size: 2, timeout: 1)]
    pools.each do |pool|
      views = client(pool).buffered("views")
      Array.new(8) { Thread.new { 10.times { views.add(@id) } } }.each(&:join)
      assert_equal 80, in_child { views.add(@id) } - 1
      @id += "x"
    end
  end

  def test_a_client_for_one_thread_is_shared
    views = client(RedisClient.new(path: SOCKET)).buffered("views")
    threads = Array.new(8) { Thread.new { 20.times { views.add_many({ @id => 1, "#{@id}/2" => 1 }) } } }
    threads.each(&:join)
    assert_equal [161, 161], views.add_many({ @id => 1, "#{@id}/2" => 1 })
  end
end
