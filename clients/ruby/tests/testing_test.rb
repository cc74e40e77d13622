# frozen_string_literal: true

require_relative "helper"
require "counterfoil/testing"

# The client in memory does the same as the one with servers.
class TestingTest < ClientTest
  def both
    families = { votes: { min: 0, max: 1000 }, hits: { windows: %w[60s day] }, paths: { ids: "[0-9]+/.+" }, visits: { separator: "|", ids: '[^|]+\\|[0-9-]+' } }
    memory = Counterfoil::Testing.new(NAMESPACE, families: families)
    servers = Counterfoil.new(@redis, NAMESPACE, daemon: DAEMON, retry_for: 20)
    [servers, memory].map { |counterfoil| outcomes(counterfoil) }
  end

  def outcome
    yield
  rescue Counterfoil::Error => error
    [error.class, error.reason, error.temporary?, error.is_a?(Counterfoil::NotCounted) && error.value]
  end

  def outcomes(counterfoil)
    views, votes, hits, readers, daily, paths, visits = [
      *%i[buffered cached series activity visitors].zip(%w[views votes hits readers daily]), [:buffered, "paths"], [:visitors, "visits"]
    ].map { |kind, family| counterfoil.public_send(kind, family) }
    epoch = views.request_epoch("job", @id)
    [
      -> { views.add(@id) }, -> { views.add(@id, 2**62) }, -> { views.add(@id, 2**62) }, -> { views.add("") }, -> { views.add(@id, 1.5) },
      -> { views.add_many({ @id => 1, "#{@id}/b" => -5 }) }, -> { views.values([@id, "#{@id}/b", "#{@id}/c"]) },
      *Array.new(2) { -> { views.add_once("job", "#{@id}/j", 3, epoch: epoch) } }, -> { views.add_once("old", "#{@id}/j", epoch: "0" * 16) },
      -> { views.later("#{@id}/l", 3) }, -> { views.flush }, -> { views.value("#{@id}/l", 7) },
      -> { votes.incr(@id, 3) }, -> { votes.incr(@id, -4) }, -> { votes.set(@id, 1001) }, -> { votes.set(@id, 7) }, -> { votes.get(@id) },
      *Array.new(2) { -> { votes.incr_once("job", @id, 2) } }, *Array.new(2) { -> { votes.incr_once("no", @id, -20) } },
      -> { hits.add(@id, 2) }, -> { hits.later(@id, 3, Time.now - 3600) }, -> { hits.flush }, -> { hits.get(@id, "60s").sum(&:last) },
      -> { hits.get(@id, "60s").size }, -> { hits.add(@id, 0) }, -> { hits.add(@id, 1, 1) }, -> { hits.add(@id, 1, Time.now + 120) }, -> { hits.get(@id, "7s") },
      -> { 3.times { |i| readers.touch(@id, i % 2) } }, -> { readers.later(@id, 5) }, -> { readers.flush }, -> { readers.now(@id) },
      *[17, :"17", 18].map { |visitor| -> { daily.first_visit(@id, "2026-11-25", visitor) } }, -> { daily.later(@id, "2026-11-25", 17) },
      -> { daily.flush }, -> { daily.value(@id, "2026-11-25") }, -> { daily.first_visit(@id, "2026-02-30", 17) },
      -> { paths.add("#{@id}/a") }, -> { paths.add("7/#{@id}") }, -> { visits.first_visit("a|b", "2026-11-25", 1) },
      -> { counterfoil.series("views").add(@id) }, -> { counterfoil.flush }
    ].map { |call| outcome(&call) }
  end

  def test_it_does_the_same
    by_servers, in_memory = both
    assert_equal by_servers.map { |one| one.is_a?(Array) ? one.map { |part| part.is_a?(Counterfoil::Error) ? part.reason : part } : one }, in_memory
  end

  def test_months
    hits = Counterfoil::Testing.new("shop").series("hits")
    hits.add("site", 2, Time.now - (40 * 86_400))
    hits.add("site")
    months = hits.get("site", "month")
    assert_equal [3, 1, Time.now.utc.month], [months.sum(&:last), months.last[1], Time.at(months.last[0]).utc.month]
  end
end
