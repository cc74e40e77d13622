# frozen_string_literal: true

require_relative "helper"
require "socket"
require "tmpdir"

# Measures how long the pages of an application take while servers are unavailable.
class OutagesTest < ClientTest
  STATES = %i[refused silent dropped].freeze
  FAMILIES = { "views" => "buffered", "readers" => "activity", "daily" => "visitors" }.freeze

  # A server in a process of its own, at a port of this machine.
  class Server
    attr_reader :port

    def initialize(start)
      @start, @port = start, TCPServer.open("127.0.0.1", 0) { |server| server.addr[1] }
      @pid = @start.call(@port)
    end

    # @param state [Symbol] refused, silent (stopped in its work), or dropped (a socket that never accepts, as behind a firewall)
    def fail(state)
      return Process.kill("STOP", @pid) if state == :silent

      stop
      drop if state == :dropped
    end

    def stop
      %w[KILL CONT].each { |signal| Process.kill(signal, @pid) }
      Process.wait(@pid)
    rescue Errno::ESRCH, Errno::ECHILD
      nil
    ensure
      [@listening, *@waiting].compact.each(&:close)
    end

    private

    # Fills the queue of connections, which are never accepted, so that the kernel drops the next ones.
    def drop
      @listening = Socket.new(:INET, :STREAM)
      @listening.setsockopt(:SOCKET, :REUSEADDR, true)
      @listening.bind(Addrinfo.tcp("127.0.0.1", @port))
      @listening.listen(0)
      @waiting = Array.new(8) do
        Socket.new(:INET, :STREAM).tap { |socket| socket.connect_nonblock(Addrinfo.tcp("127.0.0.1", @port), exception: false) }
      end
    end
  end

  def redis(folder)
    server = Server.new(lambda do |port|
      program = ENV.fetch("COUNTERFOIL_REDIS_SERVER", "redis-server")
      spawn(program, "--port", port.to_s, "--save", "", "--dir", folder, out: File::NULL, err: File::NULL)
    end)
    client = RedisClient.config(url: "redis://127.0.0.1:#{server.port}", timeout: 1).new_client
    attempt(5) { client.call("PING") }
    FAMILIES.each { |family, kind| configure_at(client, family, kind) }
    client.close
    server
  end

  def configure_at(client, family, kind)
    keys = ["calls", "meta"].map { |name| "cf1:{#{NAMESPACE}/#{family}/0}:#{name}" }
    description = { wide: false, stripes: 1, separator: "/", ids: '[\s\S]{1,255}', ids_in_words: "1 to 255 bytes of UTF-8" }
    settings = { "buffered" => %w[max_pending 1000000], "activity" => %w[stripes 1 layer 30 layers 10 max_pending 1000],
                 "visitors" => %w[max_pending 1000000 remember 100000000] }
    args = ["salt", "", kind, 1, "", JSON.generate(description), *settings[kind]]
    client.call("EVAL", Counterfoil::Scripts::SOURCES.fetch("family_configure"), keys.size, *keys, *args)
  end

  def daemon
    server = Server.new(lambda do |port|
      fork do
        server = TCPServer.new("127.0.0.1", port)
        loop { Thread.new(server.accept) { |socket| serve(socket) } }
      ensure
        exit!
      end
    end)
    attempt(5) { TCPSocket.new("127.0.0.1", server.port).close }
    server
  end

  def serve(socket)
    while socket.gets
      head = []
      head << socket.gets until head.last == "\r\n"
      socket.read(head.grep(/\AContent-Length/i).first[/\d+/].to_i)
      socket.write("HTTP/1.1 200 OK\r\nContent-Length: 14\r\n\r\n{\"values\":[7]}")
    end
  end

  def attempt(seconds)
    deadline = now + seconds
    begin
      yield
    rescue RedisClient::Error, SystemCallError
      raise if now > deadline

      sleep(0.05)
      retry
    end
  end

  def now = Process.clock_gettime(Process::CLOCK_MONOTONIC)

  # @return [Array<Float>] how long each page took
  def pages(count)
    Array.new(count) do
      began = now
      yield
      now - began
    rescue Counterfoil::Error
      now - began
    end
  end

  def tried
    yield
  rescue Counterfoil::Error
    nil
  end

  def with_redis(state)
    Dir.mktmpdir do |folder|
      server = redis(folder)
      counterfoil = Counterfoil.connect("redis://127.0.0.1:#{server.port}", NAMESPACE)
      counterfoil.buffered("views").add("warm")
      counterfoil.visitors("daily").first_visit("warm", "2026-11-25", 1)
      counterfoil.activity("readers").touch("warm", 1)
      yield counterfoil, server, -> { server.fail(state) }
    ensure
      counterfoil&.instance_variable_get(:@later)&.send(:start_anew)
      counterfoil&.close
      server&.stop
    end
  end

  # a page that calls `later` only
  def later(state)
    with_redis(state) do |counterfoil, _, fail|
      fail.call
      capture_io do
        return pages(250) { 10.times { |i| counterfoil.buffered("views").later(i) }.then { sleep(0.005) } }.map { |seconds| seconds - 0.005 }
      end
    end
  end

  # a page with `add`, `first_visit` and `touch`, in three workers of one thread
  def counting(state)
    with_redis(state) do |counterfoil, _, fail|
      fail.call
      workers = Array.new(3) do
        reader, writer = IO.pipe
        pid = fork do
          until_then = now + 1.6
          times = []
          times.concat(pages(1) { three_calls(counterfoil) }).then { sleep(0.02) } while now < until_then
          writer.write(Marshal.dump(times))
        ensure
          exit!
        end
        writer.close
        [pid, reader]
      end
      return workers.flat_map { |pid, reader| Marshal.load(reader.read).tap { Process.wait(pid) } } # rubocop:disable Security/MarshalLoad
    end
  end

  def three_calls(counterfoil)
    tried { counterfoil.buffered("views").add("front") }
    tried { counterfoil.visitors("daily").first_visit("front", "2026-11-25", 17) }
    tried { counterfoil.activity("readers").touch("front", 17) }
  end

  # a page with ten values of the daemon
  def values(state)
    server = daemon
    counterfoil = Counterfoil.new(@redis, NAMESPACE, daemon: "http://127.0.0.1:#{server.port}")
    views = counterfoil.buffered("views")
    10.times { |i| assert_equal 7, views.value(i) }
    server.fail(state)
    pages(20) { 10.times { |i| views.value(i, 0) } }
  ensure
    counterfoil.close
    server.stop
  end

  # the end of a process that has sums: right after the failure, and once the outage is known
  def ends(state) = [0, 1.5].map { |seconds| Thread.new { end_after(state, seconds) } }.map(&:value)

  # @return [Float] seconds from SIGTERM to the end
  def end_after(state, seconds, **options)
    with_redis(state) do |_, server, fail|
      here, there = UNIXSocket.pair
      pid = fork do
        $stderr.reopen(File::NULL)
        own = Counterfoil.connect("redis://127.0.0.1:#{server.port}", NAMESPACE, **options)
        own.buffered("views").add("warm")
        there.puts("ready")
        there.gets
        tried { own.buffered("views").add("known") } if seconds > 1 # makes the outage known: a sum that is sent before has an unknown outcome, and does not wait
        own.buffered("views").later("last")
        sleep
      end
      here.gets
      fail.call
      here.puts("failed")
      sleep(0.02 + seconds)
      began = now
      Process.kill("TERM", pid)
      Process.wait(pid)
      next now - began
    end
  end

  # the end takes 5 s at most, also with a higher limit of calls
  def test_the_end_of_a_process_with_a_long_limit
    skip "it takes long: set COUNTERFOIL_LONG" unless ENV["COUNTERFOIL_LONG"]
    seconds = end_after(:silent, 0.5, retry_for: 30)
    assert_operator seconds, :<, 7
  end

  # For each row how many seconds the slowest page may take, and half of the pages. The limits are 1 s and 0.5 s; the machine may be
  # busy.
  ROWS = {
    later: ["a page that calls `later`", 1, 0.05], counting: ["`add`, `first_visit`, `touch`, three workers", 2.5, 0.1],
    values: ["a page with ten `value`", 2, 0.1], ends: ["SIGTERM to the end", 7, 7]
  }.freeze

  def test_the_time_of_a_page
    skip "it takes long, and needs a machine to itself: set COUNTERFOIL_LONG" unless ENV["COUNTERFOIL_LONG"]
    puts format("%-46s %s", "p50 and worst in ms", STATES.map { |state| state.to_s.rjust(18) }.join)
    ROWS.each do |row, (text, worst, usual)|
      times = STATES.map { |state| send(row, state).sort }
      puts format("%-46s %s", text, times.map { |one| format("%8.1f %9.1f", one[(one.size - 1) / 2] * 1000, one.last * 1000) }.join)
      times.zip(STATES) do |one, state|
        assert_operator one.last, :<, worst, "#{row} #{state}"
        assert_operator one[one.size / 2], :<, usual, "#{row} #{state}"
      end
    end
  end
end
