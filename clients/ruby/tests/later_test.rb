# frozen_string_literal: true

require_relative "helper"
require "counterfoil/testing"

class LaterTest < ClientTest
  def test_many_hits_are_few_calls
    @views.add(@id)
    executed = calls("EVALSHA") do
      10_000.times { @views.later(@id) }
      @views.flush
    end
    assert_equal 10_001, @views.value(@id)
    assert_operator executed, :<, 200
  end

  def test_it_is_sent_without_a_flush
    @views.later(@id)
    assert_equal 1, value_of(@views, @id)
  end

  def test_a_tracer_that_formats_commands_changes_no_outcome
    tracer = Module.new do
      def call(command, config) = command.map(&:to_s).sum(&:bytesize).then { super }
    end
    redis = RedisClient.config(path: SOCKET, middlewares: [tracer]).new_pool
    views = client(redis, later_every: 60).buffered("views")
    views.add(@id)
    begin
      @redis.call("CONFIG", "SET", "maxmemory", 1)
      7.times { |number| views.later("#{@id}/#{number}") }
      assert_equal ["OOM", true], assert_raises(Counterfoil::NotCounted) { views.flush }.then { |error| [error.reason, error.temporary?] }
    ensure
      @redis.call("CONFIG", "SET", "maxmemory", 0)
    end
    views.flush
    assert_equal [1] * 7, Array.new(7) { |number| views.value("#{@id}/#{number}") }
  end

  def test_series_activity_and_visitors
    hits, readers, daily = @counterfoil.series("hits"), @counterfoil.activity("readers"), @counterfoil.visitors("daily")
    before = Time.now - 3600
    executed = calls("EVALSHA") do
      300.times do |i|
        hits.later(@id, 2)
        hits.later("#{@id}/#{i}", 1, before)
        readers.later(@id, i % 7)
        daily.later(@id, "2026-11-25", i % 5)
      end
      hits.flush
    end
    assert_operator executed, :<, 60
    assert_equal [600, 300], [hits.get(@id, "day").last[1], (0...300).sum { |i| hits.get("#{@id}/#{i}", "60s").sum(&:last) }]
    assert_equal [[300, 7], 5], [readers.now(@id), daily.value(@id, "2026-11-25")]
  end

  # sums wait during an outage, and later those that Redis refuses are reported one by one
  def test_sums_of_each_kind
    errors, redis, is_down = [], @redis, true
    wrapper = Object.new
    wrapper.define_singleton_method(:with) { |&block| block.call(self) }
    wrapper.define_singleton_method(:call_v) { |command| is_down ? raise(Redis::CannotConnectError, "down") : redis.call(*command) }
    counterfoil = client(wrapper, retry_for: 0, later_every: 60, is_own: true, on_error: ->(*error) { errors << error })
    hits, readers, daily = counterfoil.series("hits"), counterfoil.activity("readers"), counterfoil.visitors("daily")
    hits.later(@id, 3)
    hits.later(@id, 4, 1)
    2.times { readers.later(@id, "v") }
    2.times { daily.later(@id, "2026-11-25", "v") }
    daily.later("x" * 250, "2026-11-25", "v") # too long, which shows only when the separator is known
    _, warned = capture_io { 2.times { assert_raises(Counterfoil::NotCounted) { daily.flush } } }
    assert_equal 3, warned.scan(/sums of #{NAMESPACE}.(?:hits|readers|daily) wait: UNREACHABLE/).size, warned
    is_down, deadline = false, Time.now + 10
    flush = -> { assert_raises(Counterfoil::NotCounted) { counterfoil.flush } }
    sleep(0.1) while (error = flush.call).reason == "UNREACHABLE" && Time.now < deadline # until a probe has ended the outage
    assert_match(/2 sums/, error.message)
    assert_equal [["hits", @id, 4, "BADTIME"], ["daily", "#{"x" * 250}/2026-11-25", 1, "BADID"]],
                 errors.map { |family, id, number, error| [family.delete_prefix("#{NAMESPACE}/"), id, number, error.reason] }
    visitors = @counterfoil.visitors("daily").value(@id, "2026-11-25")
    assert_equal [3, [2, 1], 1], [hits.get(@id, "day").last[1], readers.now(@id), visitors]
    %i[later first_visit].each { |call| assert_raises(Counterfoil::NotCounted) { daily.public_send(call, @id, "2026-02-30", "v") } }
    assert_raises(Counterfoil::NotCounted) { hits.later(@id, 0) }
    assert_raises(Counterfoil::NotCounted) { readers.later("", 1) }
  end

  # there is one warning, and it comes before the end of the process
  def test_sums_of_a_family_that_is_not_configured_are_warned_of
    nobody = client(@redis, retry_for: 0.1).buffered("nobody")
    _, warned = capture_io do
      nobody.later(@id)
      2.times { assert_raises(Counterfoil::NotCounted) { nobody.flush } }
    end
    assert_equal 1, warned.scan("UNCONFIGURED").size, warned
    assert_match(%r{sums of #{NAMESPACE}/nobody wait: UNCONFIGURED: no daemon has configured}, warned)
    nobody.instance_variable_get(:@later).send(:start_anew)
  end

  def test_a_child_does_not_send_the_sums_of_its_parent
    views = client(@redis, later_every: 60).buffered("views")
    views.later(@id)
    in_child do
      views.later("#{@id}/child") # sent when the child ends
      nil
    end
    assert_equal [0, 1], [views.value(@id), views.value("#{@id}/child")]
    views.flush
    assert_equal 1, views.value(@id)
  end

  def test_the_thread_of_a_child_starts_anew
    @views.later(@id)
    @views.flush
    assert_equal 1, in_child { @views.later("#{@id}/child").then { value_of(@views, "#{@id}/child") } }
  end

  def test_a_thread_that_is_killed_in_a_flush_loses_nothing
    begun = Queue.new
    slow = Object.new
    redis = @redis
    slow.define_singleton_method(:with) { |&block| block.call(self) }
    slow.define_singleton_method(:call_v) { |command| begun.push(1).then { sleep(0.1) }.then { redis.call(*command) } }
    views = client(slow, later_every: 60).buffered("views")
    views.later(@id, 5)
    flushing = Thread.new { views.flush }
    begun.pop
    flushing.kill.join
    views.flush
    assert_equal 5, @views.value(@id)
  end

  # Runs a program that counts the id, and that ends as any program does.
  def program(code)
    opening = 'require "counterfoil"; socket, namespace, id = ARGV; $stdout.sync = true'
    pid = spawn(RbConfig.ruby, "-e", "#{opening}; #{code}", SOCKET, NAMESPACE, @id, out: File::NULL, err: File::NULL)
    Process.wait(pid)
  end

  # handle_interrupt does not hold back what a signal handler raises in the main thread
  def test_a_signal_in_a_flush_loses_nothing
    %w[INT TERM ALRM].each_with_index do |signal, before|
      program(<<~RUBY)
        require "redis-client"
        slow = Object.new
        redis = RedisClient.new(path: socket)
        trap("ALRM") { raise "of the application" }
        slow.define_singleton_method(:with) { |&block| block.call(self) }
        slow.define_singleton_method(:call_v) do |command|
          ARGV.clear.then { Process.kill("#{signal}", Process.pid).then { sleep(0.2) } } if command[2] == 4 && ARGV.any?
          redis.call_v(command)
        end
        views = Counterfoil.new(slow, namespace, later_every: 60).buffered("views")
        views.later(id, 5)
        views.flush
      RUBY
      assert_equal (before + 1) * 5, @views.value(@id), signal
    end
  end

  def test_later_at_the_end_of_a_process
    program(<<~RUBY)
      views = Counterfoil.connect("unix://\#{socket}", namespace).buffered("views")
      at_exit { views.later(id, 2) }
      views.later(id)
      at_exit { views.later(id, 4) }
    RUBY
    assert_equal 7, @views.value(@id)
  end

  def test_sums_that_are_refused_at_the_end_of_a_process_are_reported
    program(<<~RUBY)
      require "redis-client"
      report = ->(_, id, delta, error) { RedisClient.new(path: socket).call("SET", id, "\#{delta} \#{error.reason}") }
      Counterfoil.connect("unix://\#{socket}", namespace, later_every: 60, on_error: report).buffered("votes").later(id, 5) # which is cached
    RUBY
    assert_equal "5 MISMATCH", @redis.get(@id)
  end

  def counts?(command) = command[5].end_with?(":buffer")

  # A client whose calls fail if the block returns an error.
  def failing(&error)
    redis = @redis
    Object.new.tap do |client|
      client.define_singleton_method(:with) { |&block| block.call(self) }
      client.define_singleton_method(:close) { nil }
      client.define_singleton_method(:call_v) { |command| (reason = error.call(command)) ? raise(reason) : redis.call(*command) }
    end
  end

  def test_close_tries_again_in_an_outage
    attempts = 0
    away = failing { (attempts += 1) < 7 && Redis::CannotConnectError } # more attempts than there are probes in 5 s
    counterfoil = client(away, retry_for: 0, is_own: true, later_every: 60)
    counterfoil.buffered("views").later(@id, 5)
    capture_io { assert_raises(Counterfoil::NotCounted) { counterfoil.flush } }
    counterfoil.close
    assert_equal 5, @views.value(@id)
  end

  # it tries for five seconds
  def test_close_drops_what_it_cannot_send
    away, silent = failing { Redis::CannotConnectError }, failing { |command| Redis::TimeoutError if counts?(command) }
    closing = [away, silent].map do |redis|
      errors = []
      counterfoil = client(redis, is_own: true, later_every: 60, on_error: ->(*error) { errors << error })
      2.times { |i| counterfoil.buffered("views").later("#{@id}/#{i}", 5) }
      Thread.new { [result_of { counterfoil.close }, errors] }
    end
    closing.map(&:value).zip(["NotCounted: UNREACHABLE: 2 sums were not counted", "OutcomeUnknown: no reply: the outcome of 2 sums is unknown"],
                             [Counterfoil::NotCounted, Counterfoil::OutcomeUnknown]) do |(message, errors), text, kind|
      assert_includes message, text
      assert_equal Array.new(2) { |i| ["#{NAMESPACE}/views", "#{@id}/#{i}", 5, kind] }, errors.map { |*sum, error| [*sum, error.class] }
    end
  end

  def test_a_closed_client_takes_no_calls
    [client(@redis), Counterfoil::Testing.new(NAMESPACE)].each do |counterfoil|
      views, votes, hits, readers, daily = %i[buffered cached series activity visitors].zip(%w[views votes hits readers daily]).map { |of| counterfoil.public_send(*of) }
      2.times { counterfoil.close }
      [-> { views.add(@id) }, -> { views.add_many({ @id => 1 }) }, -> { views.later(@id) }, -> { views.value(@id, 7) }, -> { views.flush },
       -> { votes.incr(@id) }, -> { votes.get(@id) }, -> { hits.later(@id) }, -> { hits.get(@id, "60s") }, -> { readers.touch(@id, 1) },
       -> { readers.now(@id) }, -> { daily.first_visit(@id, "2026-11-25", 1) }, -> { counterfoil.flush }].each_with_index do |call, i|
        assert_match(/CLOSED: the client is closed/, assert_raises(Counterfoil::NotCounted, i, &call).message)
      end
    end
  end

  def test_a_flush_waits_for_its_limit
    gate = Queue.new
    slow = failing { |command| gate.pop && nil if counts?(command) }
    views = client(slow, retry_for: 0.1, later_every: 60).buffered("views")
    views.later(@id, 5)
    assert_match(/1 sums are still being sent/, assert_raises(Counterfoil::NotCounted) { views.flush }.message)
    gate.close
    views.flush
    assert_equal 5, @views.value(@id)
  end

  def test_a_flush_waits_once
    later = client(@redis, retry_for: 1, later_every: 60)
    families = %w[views wide].map { |name| later.buffered(name) }
    families.each { |family| family.add(@id, 0) }
    attempts = 0
    later.instance_variable_get(:@connection).define_singleton_method(:send_once) { |*| raise Redis::CannotConnectError if attempts += 1 }
    3000.times { |i| families.each { |family| family.later("#{@id}/#{i}") } }
    assert_match(/1000 sums is unknown, 5000 sums wait/, assert_raises(Counterfoil::Error) { later.flush }.message)
    assert_operator attempts, :<=, 21 # only the first call tries again, every 50 ms
  ensure
    later.instance_variable_get(:@later).send(:start_anew)
  end

  def test_one_error_of_dropped_sums_is_kept
    later = client(@redis, on_error: ->(*) {})
    votes = later.buffered("votes") # which is cached
    errors = -> { GC.start && nil || ObjectSpace.each_object(Counterfoil::Misconfigured).count }
    before = errors.call
    30.times do |i|
      votes.later("#{@id}/#{i}")
      sleep(0.01) until later.instance_variable_get(:@later).send(:size).zero?
    end
    assert_operator errors.call - before, :<, 10
    assert_match(/30 sums/, assert_raises(Counterfoil::Misconfigured) { votes.flush }.message)
  end

  def test_sums_wait_for_redis
    views = client(RedisClient.new(path: "/nonexistent/redis.sock"), retry_for: 0).buffered("views")
    views.later(@id)
    error = assert_raises(Counterfoil::NotCounted) { views.flush }
    assert_predicate error, :temporary?
    assert_match(/1 sums wait: .*No such file/, error.message)
    assert_raises(Counterfoil::NotCounted) { views.flush } # the sum stays
    views.instance_variable_get(:@later).send(:start_anew)
  end

  def test_refused_sums_are_reported_once
    errors = []
    later = client(@redis, on_error: ->(*error) { errors << error })
    votes = later.buffered("votes") # which is cached
    votes.later(@id, 3)
    votes.later("#{@id}/2", 4)
    assert_match(/2 sums/, assert_raises(Counterfoil::Misconfigured) { votes.flush }.message)
    assert_nil votes.flush
    assert_equal [["#{NAMESPACE}/votes", @id, 3, "MISMATCH"], ["#{NAMESPACE}/votes", "#{@id}/2", 4, "MISMATCH"]],
                 errors.map { |*hit, error| [*hit, error.reason] }
  end

  # such as an error of the block that makes the connections of a pool
  def test_an_error_of_the_application_is_reported
    errors, is_broken = [], false
    pool, redis = Object.new, @redis
    pool.define_singleton_method(:with) { |&block| is_broken ? raise(KeyError, "no password") : block.call(redis) }
    views = client(pool, later_every: 60, on_error: ->(*error) { errors << error }).buffered("views")
    views.add(@id, 0)
    is_broken = true
    views.later(@id, 3)
    assert_equal "KeyError", assert_raises(Counterfoil::OutcomeUnknown) { views.flush }.reason
    assert_equal [["#{NAMESPACE}/views", @id, 3, "KeyError"]], errors.map { |*hit, error| [*hit, error.reason] }
    is_broken = false
    views.later(@id, 4)
    assert_nil views.flush
    assert_equal 4, @views.value(@id)
  end

  def test_it_is_bounded
    views = client(@redis, later_every: 60).buffered("views")
    100_000.times { |i| views.later("#{@id}/#{i}", 0) }
    assert_equal "BUSY", assert_raises(Counterfoil::NotCounted) { views.later(@id) }.reason
    views.later("#{@id}/0", 0)
    views.later("#{@id}/1", 2**63 - 1)
    assert_equal "RANGE", assert_raises(Counterfoil::NotCounted) { views.later("#{@id}/1") }.reason
    in_child { nil } # nor does a child wait for them
    views.instance_variable_get(:@later).send(:start_anew)
  end
end
