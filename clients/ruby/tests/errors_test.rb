# frozen_string_literal: true

require_relative "helper"

class ErrorsTest < ClientTest
  # A client that changes commands or replies, as the wrapper of an application may do.
  class Wrapper
    def initialize(redis, &change)
      @redis = redis
      @change = change
    end

    def with = yield(self)
    def call_v(command) = @change.call(@redis, command)
  end

  def reason(kind, &block) = assert_raises(kind, &block).reason

  def test_prefixes_are_misconfigured
    wrapper = Wrapper.new(@redis) { |redis, (name, code, count, *rest)| redis.call(name, code, count, *rest.take(count).map { |key| "app:#{key}" }, *rest.drop(count)) }
    assert_equal "BADKEY", reason(Counterfoil::Misconfigured) { client(wrapper).buffered("views").add(@id) }
    namespaced = Class.new { def self.name = "Redis::Namespace" }.new
    assert_equal "BADKEY", reason(Counterfoil::Misconfigured) { client(namespaced) }
  end

  def test_changed_replies_are_misconfigured
    [->(reply) { reply.to_s }, ->(reply) { reply.map(&:to_sym) }, ->(_) { nil }].each do |change|
      wrapper = Wrapper.new(@redis) { |redis, command| change.call(redis.call(*command)) }
      assert_raises(Counterfoil::Misconfigured) { client(wrapper).buffered("views").add(@id) }
    end
  end

  # the client of a cluster may know only nodes that are down, for seconds; a call that waits for one of them delays no other call
  def test_the_client_of_a_cluster_is_shared_and_replaced
    entered = Queue.new
    down = Class.new(Wrapper) { def self.name = "RedisClient::Cluster" }.new(nil) do
      entered << true
      sleep 0.01 until entered.size == 2
      raise RedisClient::CannotConnectError
    end
    counterfoil = client(down, is_own: true, connect: -> { RedisClient.config(path: SOCKET).new_pool(size: 2) })
    scope = (1..).lazy.map { |i| "#{@id}/#{i}" }.find { |id| Zlib.crc32("#{id}/2026-11-27").even? } # the partition that has an epoch
    threads = Array.new(2) { |i| Thread.new { counterfoil.visitors("daily").first_visit(scope, "2026-11-27", i.to_s) } }
    assert_equal [true, true], Timeout.timeout(5) { threads.map(&:value) }
  end

  def test_a_cluster_that_is_unreachable_is_tried_again
    counterfoil = Counterfoil.connect(["redis://127.0.0.1:1"], NAMESPACE, retry_for: 0.3, timeout: 0.05)
    start = Process.clock_gettime(Process::CLOCK_MONOTONIC)
    assert_predicate assert_raises(Counterfoil::NotCounted) { counterfoil.buffered("views").add(@id) }, :temporary?
    assert_operator Process.clock_gettime(Process::CLOCK_MONOTONIC) - start, :>, 0.2
  end

  def test_no_client
    assert_raises(Counterfoil::Misconfigured) { client("redis://localhost") }
    assert_raises(Counterfoil::Misconfigured) { client(@redis, retry_for: 31) }
    assert_raises(Counterfoil::Misconfigured) { Counterfoil.new(@redis, "Not a name").buffered("views") }
    assert_raises(Counterfoil::Misconfigured) { Counterfoil.connect(["ftp://localhost"], NAMESPACE) }
  end

  def test_a_server_with_a_certificate_of_its_own
    address, authority = ENV.values_at("COUNTERFOIL_TEST_TLS", "COUNTERFOIL_TEST_CA")
    skip "there is no server with TLS" unless address
    message = lambda do |options|
      views = Counterfoil.connect(address, NAMESPACE, retry_for: 0.3, **options).buffered("views")
      assert_raises(Counterfoil::NotCounted) { views.add(@id) }.message
    end
    assert_match(/tls_ca/, message.({}))
    [{ tls_ca: authority }, { tls_verify: false }].each { |options| assert_match(/UNCONFIGURED/, message.(options)) }
    assert_raises(Counterfoil::Misconfigured) { Counterfoil.connect("redis://localhost", NAMESPACE, tls_ca: authority) }
  end

  def test_families
    error = assert_raises(Counterfoil::NotCounted) { client(@redis, retry_for: 0).buffered("nobody").add(@id) }
    assert_equal ["UNCONFIGURED", true], [error.reason, error.temporary?]
    assert_match(/counterfoil.toml/, error.message)
    error = assert_raises(Counterfoil::Misconfigured) { @counterfoil.series("views").add(@id) }
    assert_match(%r{own/views is buffered, not series}, error.message)
    assert_raises(Counterfoil::Misconfigured) { @counterfoil.buffered("Views") }
    assert_raises(Counterfoil::Misconfigured) { Counterfoil.new(@redis, NAMESPACE).cached("votes") }
  end

  def test_a_family_that_is_not_configured_is_awaited_once
    asked, family = 0, "late-#{rand(2**64)}"
    redis = Wrapper.new(@redis) { |client, command| (asked += asks?(command) ? 1 : 0) && client.call(*command) }
    views = client(redis, retry_for: 1, later_every: 60).buffered(family)
    reasons = ->(count) { Array.new(count) { reason(Counterfoil::NotCounted) { views.add(@id) } }.uniq }
    assert_equal ["UNCONFIGURED"], reasons.(1)
    assert_operator asked, :<=, 5 # the first call asks every 0.2 s for a second
    before, begun = asked, Process.clock_gettime(Process::CLOCK_MONOTONIC)
    assert_equal ["UNCONFIGURED"], reasons.(50)
    views.later(@id, 5)
    capture_io { assert_equal("UNCONFIGURED", reason(Counterfoil::NotCounted) { views.flush }) }
    seconds = Process.clock_gettime(Process::CLOCK_MONOTONIC) - begun
    assert_operator asked - before, :<=, 5 * (seconds + 0.05).to_i # one call in a second
    before = asked
    configure(family, 4)
    sleep(1)
    views.flush
    assert_equal [6, before + 1], [views.add(@id), asked]
  end

  def test_a_family_that_the_daemon_refuses
    redis = Wrapper.new(@redis) { |client, command| asks?(command) ? ["UNCONFIGURED", "table views: no such column"] : client.call(*command) }
    views = client(redis, later_every: 60).buffered("views")
    begun = Process.clock_gettime(Process::CLOCK_MONOTONIC)
    error = assert_raises(Counterfoil::Misconfigured) { views.add(@id) }
    assert_equal ["UNCONFIGURED", "the daemon refuses #{NAMESPACE}/views: table views: no such column"], [error.reason, error.detail]
    views.later(@id)
    2.times { assert_equal("UNCONFIGURED", reason(Counterfoil::Misconfigured) { views.flush }) } # the sums stay
    assert_operator Process.clock_gettime(Process::CLOCK_MONOTONIC) - begun, :<, 1
    views.instance_variable_get(:@later).send(:start_anew)
  end

  # a call that was built for the old partitions is not counted: nothing would drain them
  def test_another_number_of_partitions
    [@counterfoil, Counterfoil.connect("unix://#{SOCKET}", NAMESPACE)].each do |counterfoil|
      configure("moved", 8)
      views = counterfoil.buffered("moved")
      views.add_many([])
      configure("moved", 4)
      results = views.add_many((1..3500).map { |i| ["#{@id}/#{i}", i] })
      assert_equal [0] * 4, (4..7).map { |i| @redis.hlen("cf1:{#{NAMESPACE}/moved/#{i}}:buffer") }
      assert_equal [0, "MISMATCH"], [results.grep(Integer).size, results.last.reason]
      assert_equal 1, views.add("#{@id}/1")
      @redis.call("UNLINK", *@redis.keys("cf1:{#{NAMESPACE}/moved/*"))
    end
  end

  def test_input
    @views.add(@id, 0)
    executed = calls("EVALSHA") do
      ["", "x" * 256, nil, true, 1.5, "\xff", "\xff".b].each { |id| assert_equal "BADID", reason(Counterfoil::NotCounted) { @views.add(id) } }
      ["1", 1.0, nil, 2**63, -2**63 - 1].each { |delta| assert_equal "BADARG", reason(Counterfoil::NotCounted) { @views.add(@id, delta) } }
      assert_equal "BADARG", reason(Counterfoil::NotCounted) { @counterfoil.series("hits").add(@id, 0) }
      assert_equal "BADID", reason(Counterfoil::NotCounted) { @views.add_once("x" * 65, @id) }
      assert_equal "BADID", reason(Counterfoil::NotCounted) { @counterfoil.activity("readers").touch(@id, "") }
      %w[today 2026-02-30 2026-13-01 2026-2-3].each do |day|
        assert_equal "BADID", reason(Counterfoil::NotCounted) { @counterfoil.visitors("daily").first_visit("s", day, "v") }
      end
    end
    assert_equal 0, executed
    assert_equal [1, 2, 3], [@views.add(:"#{@id}"), @views.add(@id.encode("UTF-16LE")), @views.add(@id.b)]
    readers, number = @counterfoil.activity("readers"), rand(2**60)
    [[number, 17], [number.to_s, :"17"], [:"#{number}", "18"]].each { |page, visitor| readers.touch(page, visitor) }
    assert_equal [3, 2], readers.now(number)
    daily = @counterfoil.visitors("daily")
    assert_equal [true, false], [17, "17"].map { |visitor| daily.first_visit(number, "2026-11-25", visitor) }
    assert_equal 1, daily.value(number, "2026-11-25")
  end

  def test_unreachable
    own = Counterfoil.connect("unix:///nonexistent/redis.sock", NAMESPACE, retry_for: 0.1).buffered("views")
    error = assert_raises(Counterfoil::NotCounted) { own.add(@id) }
    assert_equal ["UNREACHABLE", true], [error.reason, error.temporary?]
    assert_kind_of RedisClient::CannotConnectError, error.cause
  end

  # true for a command that asks for the epoch
  def asks?(command) = command[5].to_s.end_with?(":requests")

  # counts over a server or proxy that replies to each call with this error, and returns what is raised
  def error_after_epoch(message, resends: true)
    wrapper = Wrapper.new(@redis) do |redis, command|
      command[2] == 4 && !asks?(command) ? raise(Redis::CommandError, message) : redis.call(*command)
    end
    views = Counterfoil.new(wrapper, NAMESPACE, retry_for: 0.1, is_own: !resends).buffered("views")
    assert_raises(Counterfoil::Error) { views.add(@id) }
  end

  def test_errors_of_redis
    six = "ERR Error running script (call to f_0a1): @user_script:9: @user_script: 9: "
    {
      "OOM command not allowed" => [Counterfoil::NotCounted, "OOM"], "#{six}-OOM command" => [Counterfoil::NotCounted, "OOM"],
      "MISCONF Redis is" => [Counterfoil::NotCounted, "MISCONF"], "#{six}WRONGTYPE Operation" => [Counterfoil::NotCounted, "WRONGTYPE"],
      "TRYAGAIN Multiple" => [Counterfoil::NotCounted, "TRYAGAIN"],
      "BUSY Redis is busy" => [Counterfoil::NotCounted, "BUSY"], "NOAUTH Authentication" => [Counterfoil::Misconfigured, "NOAUTH"],
      "WRONGPASS invalid" => [Counterfoil::Misconfigured, "WRONGPASS"],
      "BADARG the family is cached" => [Counterfoil::Misconfigured, "BADARG"], "CROSSSLOT Keys" => [Counterfoil::Misconfigured, "CROSSSLOT"],
      "MOVED 1 127.0.0.1:1" => [Counterfoil::Misconfigured, "MOVED"], "NOPERM this user" => [Counterfoil::OutcomeUnknown, "NOPERM"],
      "ERR unknown" => [Counterfoil::OutcomeUnknown, "ERR"]
    }.each do |message, expected|
      error = error_after_epoch(message, resends: false)
      assert_equal expected, [error.class, error.reason], message
      assert_equal %w[OOM MISCONF TRYAGAIN BUSY].include?(error.reason), error.temporary?, message
      assert_kind_of Redis::CommandError, error.cause
    end
  end

  def test_a_name_that_passed_is_not_used_again
    names = []
    wrapper = Wrapper.new(@redis) do |redis, command|
      names << command[command[2] + 3] if command[2] == 4 && !asks?(command)
      names.size == 1 ? ["PASSED"] : redis.call(*command)
    end
    views = client(wrapper).buffered("views")
    assert_equal "PASSED", reason(Counterfoil::OutcomeUnknown) { views.add(@id) }
    assert_equal [1, 2], [views.add(@id), names.uniq.size]
  end

  # the windows of the series have changed, so Redis may execute the first send of the call when it arrives at last
  def test_a_call_that_may_arrive_late_is_not_made_anew_for_other_settings
    replies = [-> { raise Redis::TimeoutError }, -> { ["MISMATCH"] }]
    redis = Wrapper.new(@redis) { |client, command| asks?(command) ? client.call(*command) : replies.shift.call }
    error = assert_raises(Counterfoil::OutcomeUnknown) { client(redis).series("hits").add("site") }
    assert_equal ["MISMATCH", []], [error.reason, replies]
  end

  # the library may have lost the reply to its first send, and then received this error for a second send or for a new connection
  def test_errors_after_a_send_of_the_library
    %w[LOADING MASTERDOWN READONLY BUSY CLUSTERDOWN TRYAGAIN NOAUTH WRONGPASS OOM MISCONF NOREPLICAS].each do |code|
      assert_equal [Counterfoil::OutcomeUnknown, code], error_after_epoch("#{code} text").then { |error| [error.class, error.reason] }
    end
    %w[LOADING MASTERDOWN READONLY].each do |code|
      own = error_after_epoch("#{code} text", resends: false)
      assert_equal [Counterfoil::NotCounted, code, true], [own.class, own.reason, own.temporary?]
      full = "ERR max number of clients reached"
      assert_equal ["no reply", "UNREACHABLE"], [error_after_epoch(full).reason, error_after_epoch(full, resends: false).reason]
      wrapper = Wrapper.new(@redis) { |_, _| raise Redis::CommandError, "#{code} text" }
      error = assert_raises(Counterfoil::NotCounted) { Counterfoil.new(wrapper, NAMESPACE, retry_for: 0).buffered("views").add(@id) }
      assert_equal [code, true], [error.reason, error.temporary?]
    end
  end

  # the count shows whether a refusal, or EXPIRED, is the reply to the only send of a call
  def test_each_send_of_the_library_is_counted
    received, server = [], TCPServer.new("127.0.0.1", 0)
    serving = Thread.new do
      loop do
        connection = server.accept
        while (line = connection.gets)
          connection.write("+OK\r\n") if line.match?(/\A(HELLO|CLIENT|SELECT)/)
          break received << line if line.start_with?("EVALSHA")
        end
        connection.close
      end
    end
    (0..2).each do |repeats|
      options = { host: "127.0.0.1", port: server.addr[1], reconnect_attempts: repeats }
      redis = Redis.new(**options, **(Redis::VERSION < "6" ? {} : { protocol: 2 }))
      [redis, RedisClient.config(**options, protocol: 2).new_client].each do |client|
        received.clear
        word = Counterfoil::Connection.class_eval("Word", __FILE__, __LINE__).new("script")
        assert_raises(Redis::BaseError, RedisClient::Error) { client.call("EVALSHA", word, 0) }
        assert_equal [repeats + 1] * 2, [word.sends, received.size], client.class
      end
    end
  ensure
    serving.kill
    server.close
  end

  # the client of a cluster checks out a connection for each send, so it may have sent the call before the pool is full
  def test_a_full_pool
    full = RedisClient::CheckoutTimeoutError.new("Couldn't checkout a connection in time")
    { "RedisClient::Pooled" => "NotCounted UNREACHABLE", "RedisClient::Cluster" => "OutcomeUnknown no reply" }.each do |name, expected|
      refusing = Class.new(Wrapper) { define_singleton_method(:name) { name } }
      wrapper = refusing.new(@redis) { |redis, command| command[2] == 4 && !asks?(command) ? raise(full) : redis.call(*command) }
      id = (1..).lazy.map { |i| "#{@id}/#{i}" }.find { |one| Zlib.crc32(one) % 4 == 0 } # the partition that has an epoch
      error = assert_raises(Counterfoil::Error) { client(wrapper, retry_for: 0).buffered("views").add(id) }
      assert_equal expected, "#{error.class.name.delete_prefix("Counterfoil::")} #{error.reason}"
    end
  end

  def test_a_user_that_may_send_nothing
    wrapper = Wrapper.new(@redis) { |_, _| raise Redis::CommandError, "NOPERM this user has no permissions" }
    assert_equal "NOPERM", reason(Counterfoil::Misconfigured) { client(wrapper).buffered("views").add(@id) }
  end

  def test_expired
    own = Counterfoil.connect("unix://#{SOCKET}", NAMESPACE).buffered("views")
    views = client(@redis).buffered("views")
    wrapped = client(Wrapper.new(@redis) { |redis, command| redis.call(*command.map { |word| "#{word}" }) }).buffered("views") # hides sends
    [own, views, wrapped].each do |one|
      one.add(@id, 0)
      one.instance_variable_get(:@family).epoch(0).now = "0" * 16
    end
    assert_equal [1, 2], [own.add(@id), views.add(@id)] # asked again, since the first send was the only one
    assert_equal "EXPIRED", reason(Counterfoil::OutcomeUnknown) { wrapped.add(@id) }
    assert_equal 3, wrapped.add(@id)
  end
end
