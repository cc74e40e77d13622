# frozen_string_literal: true

require_relative "helper"
require "mysql2"
require "socket"

class ValuesTest < ClientTest
  def setup
    super
    @database = Mysql2::Client.new(socket: ENV.fetch("COUNTERFOIL_TEST_MYSQL"), username: "root",
                                   database: ENV.fetch("COUNTERFOIL_TEST_DATABASE"))
    call = lambda do |sql, parameters|
      statement = @database.prepare(sql)
      statement.execute(*parameters).to_a
    ensure
      statement&.close # mysql2 closes a forgotten one at any moment, even in the middle of a call
    end
    @clients = [client(@redis), *[@database, call].map { |database| Counterfoil.new(@redis, NAMESPACE, database: database) }]
  end

  def test_values
    wide = @counterfoil.buffered("wide")
    10.times { wide.add(@id) }
    @views.add(@id, 2**62)
    @views.add(@id, -5)
    daily = @counterfoil.visitors("daily")
    assert_equal [true, false, true], %w[a a b].map { |visitor| daily.first_visit(@id, "2026-11-25", visitor) }
    @clients.each do |one|
      assert_equal [10, 2**62 - 5, 0, 2], [one.buffered("wide").value(@id), one.buffered("views").value(@id),
                                           one.buffered("views").value("#{@id}/none"), one.visitors("daily").value(@id, "2026-11-25")]
    end
    assert_raises(Counterfoil::Misconfigured) { Counterfoil.new(@redis, NAMESPACE).buffered("views").value(@id) }
  end

  def test_another_database
    other = "#{ENV.fetch("COUNTERFOIL_TEST_DATABASE")}_ruby"
    @database.query("CREATE DATABASE #{other}")
    %w[families values ledger].each { |name| @database.query("CREATE TABLE #{other}.counterfoil_#{name} LIKE counterfoil_#{name}") }
    @database.query("INSERT INTO #{other}.counterfoil_families SELECT * FROM counterfoil_families")
    @database.query("UPDATE #{other}.counterfoil_families SET database_id = 'other'")
    @database.query("USE #{other}")
    views = @clients[1].buffered("views")
    assert_equal "MISMATCH", assert_raises(Counterfoil::Misconfigured) { views.value(@id) }.reason
    assert_equal 1, views.add(@id)
  ensure
    @database.query("DROP DATABASE #{other}")
  end

  # values stay exact while batches land
  def test_values_while_hits_are_saved
    counted = 0
    until counted == 100
      counted += @views.add(@id) ? 1 : 0
      assert_equal [counted] * 2, @clients.drop(1).map { |one| one.buffered("views").value(@id) }
    end
  end

  def test_a_table_of_the_application
    @database.query("CREATE TABLE IF NOT EXISTS ruby_page (path VARCHAR(255) PRIMARY KEY, views BIGINT NOT NULL)")
    @database.query("INSERT INTO ruby_page VALUES ('#{@id}', 40), ('#{@id}/2026-11-25', 3)")
    @views.add(@id, 2)
    views = @clients.last.buffered("views", table: ["ruby_page", "path", :views])
    assert_equal [42, 0], [views.value(@id), views.value("#{@id}/none")]
    daily = @clients.last.visitors("daily", table: %w[ruby_page path views])
    daily.first_visit(@id, "2026-11-25", "a")
    assert_equal 4, daily.value(@id, "2026-11-25")
    configure("in_a_table", 1, '{"table":{"name":"ruby_page"}}') # counterfoil's own has no row of it
    assert_match(/needs `table`/, assert_raises(Counterfoil::Misconfigured) { @clients.last.buffered("in_a_table").value(@id) }.message)
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
    assert_equal [@id], reads # one read for all of them
    assert_equal [20, 20], [votes.set(@id, 20), votes.get(@id)]
    error = assert_raises(Counterfoil::NotCounted) { votes.incr(@id, -21) }
    assert_equal ["RANGE", 20], [error.reason, error.value]
  end

  def test_an_error_of_the_application_is_its_own
    votes = @counterfoil.cached("votes") { |_| raise KeyError, "no such row" }
    2.times { assert_raises(KeyError) { votes.incr(@id) } }
  end

  def test_what_the_daemon_replies
    replies = Queue.new
    server = TCPServer.new("127.0.0.1", 0)
    thread = Thread.new do
      while (socket = server.accept)
        nil until socket.gets == "\r\n"
        code, body, size = replies.pop
        socket.write("HTTP/1.1 #{code} text\r\nContent-Length: #{size || body.size}\r\nConnection: close\r\n\r\n#{body}")
        socket.close
      end
    end
    views = Counterfoil.new(@redis, NAMESPACE, daemon: "http://127.0.0.1:#{server.addr[1]}", retry_for: 0).buffered("views")
    part = '{"values":[{"id":"x","value":12' # of 1234
    [[200, "text"], [200, "{}"], [200, part, 36], ["text", ""], [429, ""], [500, ""], [502, ""], [503, ""], [504, ""]].each do |reply|
      2.times { replies << reply }
      assert_predicate assert_raises(Counterfoil::NotCounted, reply.inspect) { views.value(@id) }, :temporary?
      replies.clear
    end
    [400, 401, 404].each { |code| replies << [code, ""] and assert_raises(Counterfoil::Misconfigured) { views.value(@id) } }
    replies << [200, '{"values":[{"id":"x","value":-9223372036854775808}]}']
    assert_equal(-2**63, views.value(@id))
    %w[localhost:9292 unix:///daemon.sock].each { |url| assert_raises(Counterfoil::Misconfigured) { client(@redis, daemon: url) } }
  ensure
    thread&.kill
    server&.close
  end

  def test_errors_of_the_database
    broken = [->(*) { raise KeyError, "no connection" }, Mysql2::Client.new(@database.query_options.merge(database: "mysql"))]
    errors = broken.map do |database|
      views = Counterfoil.new(@redis, NAMESPACE, database: database).buffered("views")
      assert_raises(Counterfoil::NotCounted) { views.value(@id) }
    end
    assert_equal [["database", true, KeyError], ["database", true, Mysql2::Error]],
                 errors.map { |error| [error.reason, error.temporary?, error.cause.class] }
  end

  def test_requests
    epoch = @views.request_epoch("job", @id)
    assert_equal [true, false, false], Array.new(3) { @views.add_once("job", @id, 5, epoch: epoch) }
    assert_equal false, in_child { @views.add_once("job", @id, 5, epoch: epoch) } # as Sidekiq runs a job again
    assert_equal 5, @views.value(@id)
    assert_raises(Counterfoil::OutcomeUnknown) { @views.add_once("job", @id, 5, epoch: "0" * 16) }
    assert_equal [true, false], Array.new(2) { @counterfoil.buffered("wide").add_once("job", @id) }
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

  def test_calendars
    berlin = Counterfoil::Calendar.new("Europe/Berlin")
    at = Time.utc(2026, 10, 25, 12).to_i # the clocks go back
    assert_equal 25 * 3600, berlin.slice("day", at).then { |day| day.end - day.begin }
    assert_equal Time.utc(2026, 9, 30, 22).to_i, berlin.slice("month", at).begin
    cairo = Counterfoil::Calendar.new("Africa/Cairo") # its clocks skip midnight
    assert_equal Time.utc(2024, 4, 25, 22).to_i, cairo.slice("day", Time.utc(2024, 4, 26, 12).to_i).begin
    havana = Counterfoil::Calendar.new("America/Havana") # its clocks go back at one, so that midnight comes twice
    assert_equal 25 * 3600, havana.slice("day", Time.utc(2025, 11, 2, 12).to_i).then { |day| day.end - day.begin }
    assert_equal "time zone", assert_raises(Counterfoil::Misconfigured) { Counterfoil::Calendar.new("Mars/Olympus") }.reason
  end

  def test_activity
    readers = @counterfoil.activity("readers")
    %w[a b a].each { |visitor| readers.touch(@id, visitor) }
    readers.touch(@id, "\xff".b)
    assert_equal [4, 3], readers.now(@id)
  end
end
