# frozen_string_literal: true

# Measures counterfoil beside plain HINCRBY by the same library: bench.rb SOCKET NAMESPACE. Prints a JSON object.

require "counterfoil"
require "json"
require "redis"

# Measures in short rounds by turns, so that other work of the machine affects all measurements alike.
class Bench
  ROUNDS = 5
  SECONDS = 0.3
  THREADS = 64
  BATCH = 1000

  def initialize(socket, namespace)
    @redis = Redis.new(path: socket)
    @counterfoil = Counterfoil.new(@redis, namespace)
    @views = @counterfoil.buffered("views")
    @views.add("bench")
    @key = "bench:#{namespace}"
    @sha1 = Counterfoil::Scripts::SHA1S.fetch("buffered_add")
    @keys = %w[calls calls_before buffer meta].map { |name| "cf1:{#{namespace}/views/0}:#{name}" }
    @figures = Hash.new { |figures, name| figures[name] = [] }
    @cpu = Hash.new { |cpu, name| cpu[name] = [] }
  end

  def run
    ROUNDS.times do
      latency("hincrby_p50_us") { hincrby }
      latency("evalsha_p50_us") { @redis.evalsha(@sha1, @keys, ["", "1", "", "", "0", "1", "1", "bench", "1"]) }
      latency("add_p50_us") { @views.add("bench") }
      throughput("hincrby_64", THREADS) { hincrby }
      throughput("add_64", THREADS) { @views.add("bench") }
      throughput("hincrby", 1) { hincrby }
      throughput("later", 1, BATCH) { BATCH.times { @views.later("bench") }.then { flush_now_and_then } }
    end
    puts JSON.generate(result)
  ensure
    @redis.del(@key)
  end

  private

  def hincrby = @redis.hincrby(@key, "bench", 1)

  # a process that runs for long would send every few milliseconds
  def flush_now_and_then
    @counterfoil.flush if (@batches = (@batches || 0) + 1) % 10 == 0
  end

  def latency(name)
    deadline = now + SECONDS
    while now < deadline
      start = now
      yield
      @figures[name] << ((now - start) * 1e6)
    end
  end

  def throughput(name, threads, hits = 1)
    cpu = redis_cpu
    start = now
    count = Array.new(threads) { Thread.new { calls_until(start + SECONDS) { yield } } }.sum(&:value) * hits
    @counterfoil.flush
    @figures["#{name}_per_s"] << (count / (now - start))
    @cpu[name] << ((redis_cpu - cpu) * 1e6 / count)
  end

  def calls_until(deadline)
    count = 0
    while now < deadline
      yield
      count += 1
    end
    count
  end

  def redis_cpu = @redis.info("cpu").values_at("used_cpu_user", "used_cpu_sys").sum(&:to_f)

  def now = Process.clock_gettime(Process::CLOCK_MONOTONIC)

  def median(values) = values.sort[values.size / 2]

  def result
    figures = @figures.transform_values { |values| median(values).round(1) }
    cpu = @cpu.slice("hincrby_64", "add_64", "later").transform_values { |values| median(values).round(3) }
    { **figures, cpu_us_per_hit: cpu }
  end
end

Bench.new(*ARGV.first(2)).run
