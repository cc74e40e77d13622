# frozen_string_literal: true

require_relative "helper"
require "socket"

class ValuesTest < ClientTest
  def test_values
    wide = @counterfoil.buffered("wide")
    10.times { wide.add(@id) }
    @views.add(@id, 2**62)
    @views.add(@id, -5)
    daily = @counterfoil.visitors("daily")
    assert_equal [true, false, true], %w[a a b].map { |visitor| daily.first_visit(@id, "2026-11-25", visitor) }
    assert_equal [10, 2**62 - 5, 0], [wide.value(@id), @views.value(@id), @views.value("#{@id}/none")]
    assert_equal [0, 2**62 - 5], @views.values([:none, @id])
    assert_equal [], @views.values([])
    assert_equal [2, [0, 2]], [daily.value(@id, "2026-11-25"), daily.values([[@id, "2026-11-26"], [@id, "2026-11-25"]])]
    ids = Array.new(2100) { |i| "#{@id}/#{i}" }
    @views.add_many(ids.each_with_index.to_h)
    assert_equal 2099.downto(0).to_a, @views.values(ids.reverse)
    assert_raises(Counterfoil::Misconfigured) { Counterfoil.new(@redis, NAMESPACE).buffered("views").value(@id) }
  end

  # values stay exact while batches are saved
  def test_values_while_hits_are_saved
    counted = 0
    until counted == 100
      counted += @views.add(@id) ? 1 : 0
      assert_equal counted, @views.value(@id)
    end
  end

  def test_cached
    reads = []
    waiting = ->(thread) { thread.stop? && thread.backtrace.to_s.include?("share_read") }
    votes = @counterfoil.cached("votes") do |id|
      reads << id
      sleep(0.01) until Thread.list.count(&waiting) == 8
      7
    end
    assert_equal [8] + (9..16).to_a, Array.new(9) { Thread.new { votes.incr(@id) } }.map(&:value).sort
    assert_equal [@id], reads # one read for all callers
    assert_equal [20, 20], [votes.set(@id, 20), votes.get(@id)]
    error = assert_raises(Counterfoil::NotCounted) { votes.incr(@id, -21) }
    assert_equal ["RANGE", 20], [error.reason, error.value]
  end

  def test_an_error_of_the_application_is_its_own
    votes = @counterfoil.cached("votes") { |_| raise KeyError, "no such row" }
    2.times { assert_raises(KeyError) { votes.incr(@id) } }
  end

  # Serves replies to requests of kept connections, the last one to all others. Yields its URL, and the requests and connections so far.
  def with_daemon(*replies, pause: 0)
    server, requests, connections = TCPServer.new("127.0.0.1", 0), [], []
    thread = Thread.new do
      while (socket = server.accept)
        connections << Thread.new(socket) do |accepted|
          while accepted.gets
            head = []
            head << accepted.gets until head.last == "\r\n"
            requests << [head.grep(/\AAuthorization/).first, accepted.read(head.grep(/\AContent-Length/i).first[/\d+/].to_i)]
            sleep(pause)
            code, body, more, size = *(replies[requests.size - 1] || replies.last)
            accepted.write("HTTP/1.1 #{code} text\r\nContent-Length: #{size || body.bytesize}\r\n#{more}\r\n#{body}")
            break accepted.close if size
          end
        rescue SystemCallError # the test is over
          nil
        end
      end
    end
    yield "http://127.0.0.1:#{server.addr[1]}", requests, connections
  ensure
    [thread, *connections].each(&:kill)
    server.close
  end

  def views_by(daemon, **options) = Counterfoil.new(@redis, NAMESPACE, retry_for: 20, **options, daemon: daemon).buffered("views")

  SEVEN = [200, '{"family":"f","values":[7]}'].freeze
  BUSY = [503, "", "Retry-After: 1\r\n"].freeze
  NOBODY = "http://127.0.0.1:1"

  def test_connections_are_kept_and_not_shared_with_a_child
    with_daemon(SEVEN) do |url, requests, connections|
      views = views_by("#{url}/", token: "secret")
      20.times { assert_equal 7, views.value("a") }
      assert_equal [1, 20], [connections.size, requests.size]
      assert_equal ["Authorization: Bearer secret\r\n", "{\"family\":\"#{NAMESPACE}/views\",\"ids\":[\"a\"]}"], requests[0]
      assert_equal 7, in_child { views.value("a") }
      assert_equal [7, 2], [views.value("a"), connections.size]
    end
  end

  def test_threads_have_connections_of_their_own
    with_daemon(SEVEN, pause: 0.01) do |url, _, connections|
      views = views_by(url)
      found = Array.new(8) { Thread.new { Array.new(10) { views.value("a") } } }.flat_map(&:value)
      assert_equal [[7] * 80, true], [found, connections.size <= 8]
    end
  end

  def test_the_next_daemon
    with_daemon(BUSY) do |busy, refused|
      with_daemon(SEVEN) do |url, requests|
        views = views_by([NOBODY, busy, url])
        10.times { assert_equal 7, views.value("a") }
        assert_equal [1, 10], [refused.size, requests.size]
      end
      assert_predicate assert_raises(Counterfoil::NotCounted) { views_by([busy, NOBODY], retry_for: 0.3).value("a") }, :temporary?
    end
    with_daemon(BUSY, BUSY, SEVEN) do |busy, refused|
      begun = Time.now
      assert_equal [7, 3], [views_by(busy).value("a"), refused.size]
      assert_operator Time.now - begun, :>=, 1 # it pauses for half of `Retry-After` at least
    end
  end

  def test_a_silent_daemon
    silent = TCPServer.new("127.0.0.1", 0)
    with_daemon(SEVEN) do |url|
      views = views_by(["http://127.0.0.1:#{silent.addr[1]}", url], retry_for: 4) # each of both daemons gets a second
      assert_equal [7, 7], Array.new(2) { views.value("a") }
      silent.accept.close
      assert_raises(IO::WaitReadable) { silent.accept_nonblock } # from then on the daemon that replied is asked first
    end
  ensure
    silent.close
  end

  def test_defaults
    [NOBODY, with_daemon(BUSY) { |url| url }].each do |url|
      views, errors = views_by(url, retry_for: 0.3), []
      assert_equal [7, nil], [views.value(@id, 7), views.value(@id, nil)]
      assert_equal [[7, 7], [1, 2]], [views.values([@id, :b], 7), views.values([@id, :b], [1, 2])]
      assert_equal [8, [9, 9]], [views.value(@id) { |error| errors.push(error) && 8 }, views.values([@id, :b]) { |error| errors.push(error) && 9 }]
      assert_equal [Counterfoil::NotCounted] * 2, errors.map(&:class)
      assert_raises(Counterfoil::NotCounted) { views.value("x" * 256, 7) }
    end
    assert_equal 3, @views.add_many({ @id => 3 }).then { @views.value(@id, 7) }
    daily = Counterfoil.new(@redis, NAMESPACE, daemon: NOBODY, retry_for: 0.3).visitors("daily")
    assert_equal [7, [8]], [daily.value(@id, "2026-11-25", 7), daily.values([[@id, "2026-11-25"]]) { 8 }]
    with_daemon([404, ""]) { |url| assert_raises(Counterfoil::Misconfigured) { views_by(url).value(@id, 7) } }
  end

  def test_an_outage_of_the_daemon
    silent = TCPServer.new("127.0.0.1", 0)
    views = views_by("http://127.0.0.1:#{silent.addr[1]}", retry_for: 0.3)
    assert_equal ["UNREACHABLE"] * 3, Array.new(3) { assert_raises(Counterfoil::NotCounted) { views.value(@id) }.reason }
    begun = Time.now
    assert_match(/the daemon (is|has been) unreachable(?! for 0 s)/, assert_raises(Counterfoil::NotCounted) { views.value(@id) }.message)
    assert_operator Time.now - begun, :<, 0.1
    serving = Thread.new do
      while (socket = silent.accept)
        head = []
        head << socket.gets until [nil, "\r\n"].include?(head.last) && head.any?
        socket.write("HTTP/1.1 200 OK\r\nContent-Length: #{SEVEN[1].bytesize}\r\nConnection: close\r\n\r\n#{SEVEN[1]}")
        socket.close
      end
    end
    deadline = Time.now + 5
    sleep(0.05) while views.value(@id, nil).nil? && Time.now < deadline
    assert_equal 7, views.value(@id)
  ensure
    serving&.kill
    silent.close
  end

  # values fail with the same reason as other calls
  def test_a_family_that_is_not_configured
    nobody = @counterfoil.buffered("nobody")
    error = assert_raises(Counterfoil::NotCounted) { nobody.value(@id) }
    assert_equal ["UNCONFIGURED", true], [error.reason, error.temporary?]
    assert_match(%r{no daemon has configured #{NAMESPACE}/nobody: declare it}, error.message)
    assert_equal [7, [7, 7], "UNCONFIGURED"], [nobody.value(@id, 7), nobody.values([@id, 1], 7), nobody.value(@id, &:reason)]
    with_daemon([404, '{"error":"nothing at this path"}']) { |url| assert_raises(Counterfoil::Misconfigured) { views_by(url).value(@id, 7) } }
    with_daemon([404, %({"error":"no family \\"#{NAMESPACE}/views\\""})]) { |url| assert_equal 7, views_by(url).value(@id, 7) }
  end

  def test_what_the_daemon_replies
    part = '{"values":[12' # a part of 1234
    passing = [[200, "text"], [200, "{}"], [200, "[]"], [200, part, nil, 36], ["text", ""], [429, ""], [500, ""], [502, ""], [504, ""]]
    passing.each do |reply|
      with_daemon(reply) do |url|
        error = assert_raises(Counterfoil::NotCounted, reply.inspect) { views_by(url, retry_for: 0).value(@id) }
        assert_predicate error, :temporary?
      end
    end
    [302, 400, 401, 404, 409].each do |code|
      with_daemon([code, "", "Location: #{NOBODY}\r\n"]) do |url|
        with_daemon(SEVEN) do |other, requests|
          assert_raises(Counterfoil::Misconfigured) { views_by([url, other]).value(@id) }
          assert_empty requests
        end
      end
    end
    with_daemon([200, '{"family":"f","values":[-9223372036854775808]}']) { |url| assert_equal(-2**63, views_by(url).value(@id)) }
    %w[localhost:9292 unix:///daemon.sock].each { |url| assert_raises(Counterfoil::Misconfigured) { client(@redis, daemon: url) } }
  end

  def test_requests
    epoch = @views.request_epoch("job", @id)
    assert_equal [true, false, false], Array.new(3) { @views.add_once("job", @id, 5, epoch: epoch) }
    assert_equal false, in_child { @views.add_once("job", @id, 5, epoch: epoch) } # as Sidekiq runs a job again
    assert_equal 5, @views.value(@id)
    assert_raises(Counterfoil::OutcomeUnknown) { @views.add_once("job", @id, 5, epoch: "0" * 16) }
    assert_equal [true, false], Array.new(2) { @counterfoil.buffered("wide").add_once("job", @id) }
    @views.add(@id)
    @redis.hdel("cf1:{#{NAMESPACE}/views/0}:requests", %w[=now =before =began_at]) # as a reset leaves it
    assert_raises(Counterfoil::OutcomeUnknown) { @views.add_once("next", @id) }
    assert_equal [true, false], Array.new(2) { @views.add_once("next", @id) }
  end

  def test_requests_of_a_cached_counter
    votes = @counterfoil.cached("votes") { 5 }
    epoch = votes.request_epoch("job", @id)
    assert_equal [7, 8, 7], [votes.incr_once("job", @id, 2, epoch: epoch), votes.incr(@id), votes.incr_once("job", @id, 2)]
    2.times do
      error = assert_raises(Counterfoil::NotCounted) { votes.incr_once("beyond", @id, -9) }
      assert_equal ["RANGE", 8], [error.reason, error.value]
    end
  end

  def test_series
    hits = @counterfoil.series("hits")
    2.times { |i| hits.add(@id, i + 1) }
    minutes = hits.get(@id, "60s")
    assert_equal [120, 3, [60]], [minutes.size, minutes.sum(&:last), minutes.each_cons(2).map { |a, b| b[0] - a[0] }.uniq]
    days = hits.get(@id, "day")
    assert_equal [31, 3], [days.size, days.last[1]]
    assert_equal "BADARG", assert_raises(Counterfoil::NotCounted) { hits.get(@id, "7s") }.reason
  end

  def test_late_hits
    hits, now = @counterfoil.series("hits"), Time.now
    hits.add(@id, 1)
    hits.add(@id, 2, now - 3600)
    hits.add(@id, 4, now.to_f - 5400)
    assert_equal [6, 7], hits.get(@id, "60s").then { |minutes| [minutes[0, 60].sum(&:last), minutes.sum(&:last)] }
    [now + 120, 1, "now", -1].each { |at| assert_equal "BADTIME", assert_raises(Counterfoil::NotCounted) { hits.add(@id, 1, at) }.reason }
  end

  def test_activity
    readers = @counterfoil.activity("readers")
    %w[a b a].each { |visitor| readers.touch(@id, visitor) }
    readers.touch(@id, "\xff".b)
    assert_equal [4, 3], readers.now(@id)
  end
end
