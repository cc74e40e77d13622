# frozen_string_literal: true

# Runs scenarios: calls as JSON lines on stdin, their replies as JSON lines on stdout.

require "counterfoil/testing"
require "json"

# Makes the calls of a scenario with its client.
class Runner
  def initialize(library:, namespace:, socket: nil, nodes: nil, own: false, timeout: 1, options: {}, families: {}, **)
    options = options.transform_keys(&:to_sym)
    urls = nodes&.map { |node| "redis://#{node}" } || "unix://#{socket}"
    @counterfoil =
      if library == "testing" then Counterfoil::Testing.new(namespace, families: families)
      elsif own then Counterfoil.connect(urls, namespace, timeout: timeout, **options)
      else Counterfoil.new(connect(library, urls, timeout), namespace, **options)
      end
    @families = {}
    @mutex = Mutex.new
  end

  def reply(id:, kind:, family:, call:, args: [], **)
    named = %w[add_once incr_once].include?(call) && args.size > 3 ? { epoch: args[3] } : {}
    { id: id, returns: encode(handle(kind, family).public_send(call, *args.first(named.empty? ? args.size : 3), **named)) }
  rescue Counterfoil::Error => error
    { id: id, **describe(error) }
  rescue Exception => error # rubocop:disable Lint/RescueException
    { id: id, error: "escaped", reason: "#{error.class}: #{error.message}" }
  end

  # Makes a call in a forked child, which then ends as any process does.
  def reply_of_child(call)
    reader, writer = IO.pipe
    pid = fork do
      reader.close
      writer.puts(JSON.generate(reply(**call)))
      writer.close
    end
    writer.close
    line = reader.read
    Process.wait(pid)
    line.empty? ? { id: call[:id], error: "escaped", reason: "the child ended without a reply" } : JSON.parse(line)
  end

  def close = @counterfoil.close

  private

  def connect(library, urls, timeout)
    require(urls.is_a?(Array) ? { "redis" => "redis-clustering", "redis-client" => "redis-cluster-client" }.fetch(library) : library)
    case [library, urls]
    in ["redis", Array] then Redis::Cluster.new(nodes: urls, timeout: timeout)
    in ["redis", String] then Redis.new(url: urls, timeout: timeout)
    in [_, Array] then RedisClient.cluster(nodes: urls, timeout: timeout).new_pool(size: 5)
    in [_, String] then RedisClient.config(url: urls, timeout: timeout, reconnect_attempts: 1).new_pool(size: 5, timeout: 5)
    end
  end

  def handle(kind, family) = @mutex.synchronize { @families[[kind, family]] ||= @counterfoil.public_send(kind, family) }

  def encode(value)
    case value
    when Counterfoil::Error then describe(value)
    when Array then value.map { |one| encode(one) }
    else value
    end
  end

  def describe(error)
    name = error.class.name.split("::").last.gsub(/(?<=[a-z])(?=[A-Z])/, "_").downcase
    value = error.value if error.is_a?(Counterfoil::NotCounted)
    { error: name, reason: error.reason, value: value }.compact
  end
end

# Hands each call to its thread, and prints the replies.
class Threads
  def initialize(runner)
    @runner = runner
    @queues = {}
    @threads = []
    @output = Mutex.new
  end

  def start(name)
    queue = @queues[name] = Thread::Queue.new
    @threads << Thread.new { work(queue) } if name != "main"
    queue
  end

  def read(input)
    input.each_line do |line|
      call = JSON.parse(line, symbolize_names: true)
      place, name = call.fetch(:as, "main").split(":", 2)
      name = place == "fork" ? name || "main" : place
      (@queues[name] || start(name)) << [call, place == "fork"]
    end
    @queues.each_value(&:close)
  end

  def work(queue)
    while (call, is_fork = queue.pop)
      print(is_fork ? @runner.reply_of_child(call) : @runner.reply(**call))
    end
  end

  def join = @threads.each(&:join)

  def print(reply) = @output.synchronize { $stdout.puts(JSON.generate(reply)) }
end

$stdout.sync = true
open = JSON.parse($stdin.gets, symbolize_names: true).fetch(:open)
runner = Runner.new(**open)
threads = Threads.new(runner)
main = threads.start("main")
threads.print({ ready: true })
reader = Thread.new { threads.read($stdin) }
threads.work(main)
reader.join
threads.join
runner.close
