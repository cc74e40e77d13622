# frozen_string_literal: true

require "counterfoil"
require "connection_pool"
require "minitest/autorun"
require "redis"
require "redis-client"

# The base of the tests: a client of the servers that the environment names, and an id of its own for each test.
class ClientTest < Minitest::Test
  SOCKET = ENV.fetch("COUNTERFOIL_TEST_SOCKET")
  NAMESPACE = ENV.fetch("COUNTERFOIL_TEST_NAMESPACE")
  DAEMON = ENV.fetch("COUNTERFOIL_TEST_DAEMON")

  # loads the scripts, since tests that count calls expect no further ones for a script that Redis does not know
  Redis.new(path: SOCKET).then do |redis|
    Counterfoil::Scripts::SOURCES.each_value { |source| redis.call("SCRIPT", "LOAD", source) }
  end

  def setup
    @redis = Redis.new(path: SOCKET, timeout: 1)
    @counterfoil = client(@redis)
    @views = @counterfoil.buffered("views")
    @id = "#{name}-#{rand(2**64)}"
  end

  def client(redis, **options) = Counterfoil.new(redis, NAMESPACE, daemon: DAEMON, retry_for: 20, **options)

  # Runs the block in a child, which then ends as any process does, and returns what it returned.
  def in_child
    reader, writer = IO.pipe
    pid = fork do
      reader.close
      writer.write(Marshal.dump(result_of { yield }))
      writer.close
    end
    writer.close
    Marshal.load(reader.read).tap { Process.wait(pid) } # rubocop:disable Security/MarshalLoad
  end

  def result_of
    yield
  rescue Counterfoil::Error => error
    "#{error.class}: #{error.message}"
  end

  # An error that a signal handler of the application raises. handle_interrupt does not hold it back in the main thread.
  Stop = Class.new(StandardError)

  # Raises Stop at one of the points at which Ruby may call the handler of a signal while it runs code of the package. Returns false
  # if there are fewer points.
  def interrupted_at?(point)
    thread, passed = Thread.current, 0
    trace = TracePoint.new(:line, :c_return) do |at|
      raise Stop if Thread.current.equal?(thread) && at.path.include?("/lib/counterfoil/") && (passed += 1) == point
    end
    trace.enable { yield }
    false
  rescue Stop
    assert_nil Counterfoil::Limit.at, point # a limit that stays would end the thread's later calls
    true
  end

  # Waits until a counter has a value, and returns it.
  def value_of(views, id)
    deadline = Process.clock_gettime(Process::CLOCK_MONOTONIC) + 5
    sleep(0.01) while (value = views.value(id)).zero? && Process.clock_gettime(Process::CLOCK_MONOTONIC) < deadline
    value
  end

  # Configures a family without the daemon.
  def configure(family, partitions, more = {}, *settings)
    keys = ["cf1:{#{NAMESPACE}/#{family}/0}:calls", *Array.new(partitions) { |i| "cf1:{#{NAMESPACE}/#{family}/#{i}}:meta" }]
    ids = { wide: false, separator: "/", ids: '[\s\S]{1,255}', ids_in_words: "1 to 255 bytes of UTF-8" }
    args = ["salt", "", "buffered", partitions, "", JSON.generate(ids.merge(more)), "max_pending", 1_000_000, *settings]
    @redis.call("EVAL", Counterfoil::Scripts::SOURCES.fetch("family_configure"), keys.size, *keys, *args)
  end

  # Returns how often this client sent a command while the block ran. The counts of Redis would include commands of the daemon.
  def calls(command)
    sent = []
    @redis.define_singleton_method(:call) do |*arguments|
      sent << arguments[0]
      super(*arguments, &nil) # super would pass the block of this method on
    end
    yield
    sent.count(command)
  end

  # Returns the callers of the current epoch and of the one before, since a new epoch may begin at any time.
  def callers(family = "views")
    memories = %w[calls calls_before].flat_map { |key| @redis.hkeys("cf1:{#{NAMESPACE}/#{family}/0}:#{key}") }
    memories.uniq.reject { |name| name.start_with?("=") }
  end
end
