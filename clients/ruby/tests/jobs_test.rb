# frozen_string_literal: true

require_relative "helper"
require "logger"

# The part of Sidekiq that the recipe of the README needs.
module Sidekiq
  module Job
    def self.included(job) = job.extend(Enqueue)

    def logger = Logger.new(File::NULL)

    # Keeps the arguments.
    module Enqueue
      def perform_async(*args) = (@enqueued = args)
      attr_reader :enqueued
    end
  end
end

# Runs the recipe of the README by the schedule of Sidekiq: 25 retries within about 21 days. Redis and the runner have the same clock,
# which jumps from one retry to the next.
class JobsTest < ClientTest
  README = File.join(__dir__, "..", "README.md")
  RECIPE = File.read(README)[/^## Jobs$.*?```ruby\n(.*?)```/m, 1]
  Order = Struct.new(:id, :product_id)
  RETRIES = 25
  REMEMBERED = 30 * 86_400_000 # milliseconds

  # Sends calls at a time of its own, and loses replies.
  class Network
    attr_accessor :now_ms, :fault

    def initialize(redis)
      @redis, @now_ms = redis, 1_800_000_000_000
    end

    def with = yield(self)

    def call_v(command)
      command = command.map(&:to_s)
      place = 3 + command[2].to_i + 3 # `now_ms` follows three arguments in both scripts that are called
      command[place] = @now_ms.to_s
      is_counting = command.size > place + 1
      return @redis.call(*command) unless is_counting && (fault = @fault&.call)

      @redis.call(*command) if fault == :lose_reply || fault == :kill
      fault == :kill ? Process.kill("KILL", Process.pid).then { sleep } : raise(Redis::TimeoutError)
    end
  end

  def setup
    super
    @family = "sales_#{rand(2**64)}" # a new family for each test, since its clock must not step back
    configure(@family, 1, {}, "remember_requests", REMEMBERED)
    @network = Network.new(@redis)
    @random = Random.new(ENV.fetch("COUNTERFOIL_SEED", rand(2**32)).to_i.tap { |seed| puts "COUNTERFOIL_SEED=#{seed}" })
  end

  # each run may be in another process
  def sales
    counterfoil = Counterfoil.new(@network, NAMESPACE, retry_for: 0)
    yield counterfoil.buffered(@family)
  ensure
    counterfoil.close # ends its probes, which would send an older time
  end

  # Runs the recipe.
  #
  # @return [Array] its class, and the arguments of the job
  def enqueue(id)
    family = Object.new
    test = self
    family.define_singleton_method(:request_epoch) { |*args| test.sales { |sales| sales.request_epoch(*args) } }
    family.define_singleton_method(:add_once) { |*args, **named| test.sales { |sales| sales.add_once(*args, **named) } }
    counterfoil = Object.new.tap { |client| client.define_singleton_method(:buffered) { |_| family } }
    recipe = Module.new { const_set(:COUNTERFOIL, counterfoil) }
    recipe.define_singleton_method(:order) { Order.new(id, test.instance_variable_get(:@id)) }
    recipe.module_eval(RECIPE, README)
    job = recipe.const_get(:SaleJob)
    [job, job.enqueued]
  end

  # Sidekiq's delay before the retry of this number
  def delay(count) = ((count**4) + 15 + (@random.rand(10) * (count + 1))) * 1000

  # Runs a job until it succeeds, as a worker of Sidekiq: an error, or the end of the worker, puts it into the retry set.
  #
  # @return [Boolean] true if the job has succeeded
  def work(job, args, faults)
    (0..RETRIES).any? do |count|
      fault = faults.shift
      @network.fault = -> { fault.tap { fault = nil } }
      is_done = fault == :kill ? in_worker { perform(job, args) } : perform(job, args)
      @network.now_ms += delay(count) unless is_done
      is_done
    end
  end

  def perform(job, args)
    job.new.perform(*args)
    true
  rescue Counterfoil::Error
    false
  end

  def in_worker
    pid = fork { yield.then { |is_done| exit!(is_done ? 0 : 1) } }
    Process.wait2(pid)[1].success?
  end

  def test_jobs_that_lose_replies_and_workers_count_once_and_end
    left = Array.new(60) { rand(2**64) }.reject.with_index do |id, i|
      size = i < 5 ? RETRIES : @random.rand(8) # some need the whole schedule
      faults = Array.new(size) { %i[lose_reply lose_request].sample(random: @random) }
      faults[@random.rand(size)] = :kill if i % 6 == 0 && size > 0
      work(*enqueue(id), faults)
    end
    assert_empty left, "jobs stay in the retry set"
    assert_equal "60", @redis.hget("cf1:{#{NAMESPACE}/#{@family}/0}:buffer", @id)
  end

  # it is not counted again, and does not stay in the retry set
  def test_a_job_that_is_too_late
    job, args = enqueue(rand(2**64))
    perform(job, args)
    2.times { (@network.now_ms += REMEMBERED + 1).then { sales { |sales| sales.request_epoch("other", @id) } } }
    error = assert_raises(Counterfoil::OutcomeUnknown) { sales { |sales| sales.add_once(args[0], @id, 1, epoch: args[2]) } }
    assert_equal ["EXPIRED", true], [error.reason, perform(job, args)]
    assert_equal "1", @redis.hget("cf1:{#{NAMESPACE}/#{@family}/0}:buffer", @id)
  end
end
