# frozen_string_literal: true

require_relative "helper"

# The recipe of the README, by a job runner with the schedule of Sidekiq: 25 retries within about 21 days. Redis and runner have the
# same clock, which runs as fast as the schedule.
class JobsTest < ClientTest
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
    configure("sales", 1, {}, "remember_requests", REMEMBERED)
    @network = Network.new(@redis)
    @random = Random.new(ENV.fetch("COUNTERFOIL_SEED", rand(2**32)).to_i.tap { |seed| puts "COUNTERFOIL_SEED=#{seed}" })
  end

  def sales = Counterfoil.new(@network, NAMESPACE, retry_for: 0).buffered("sales")

  # Sidekiq's delay before the retry of this number
  def delay(count) = ((count**4) + 15 + (@random.rand(10) * (count + 1))) * 1000

  # Runs a job until it succeeds, as a worker of Sidekiq: an error, or the end of the worker, puts it into the retry set.
  #
  # @return [Boolean] it is done
  def work(request, epoch, faults)
    (0..RETRIES).any? do |count|
      fault = faults.shift
      @network.fault = -> { fault.tap { fault = nil } }
      is_done = fault == :kill ? in_worker { perform(request, epoch) } : perform(request, epoch)
      @network.now_ms += delay(count) unless is_done
      is_done
    end
  end

  def perform(request, epoch)
    sales.add_once(request, @id, 1, epoch: epoch)
    true
  rescue Counterfoil::OutcomeUnknown => error
    error.reason == "EXPIRED"
  rescue Counterfoil::NotCounted
    false
  end

  def in_worker
    pid = fork { yield.then { |is_done| exit!(is_done ? 0 : 1) } }
    Process.wait2(pid)[1].success?
  end

  def test_jobs_that_lose_replies_and_workers_count_once_and_end
    left = Array.new(60) { |i| "job/#{i}/#{rand(2**64)}" }.reject.with_index do |request, i|
      size = i < 5 ? RETRIES : @random.rand(8) # some need the whole schedule
      faults = Array.new(size) { %i[lose_reply lose_request].sample(random: @random) }
      faults[@random.rand(size)] = :kill if i % 6 == 0 && size > 0
      work(request, sales.request_epoch(request, @id), faults)
    end
    assert_empty left, "jobs stay in the retry set"
    assert_equal "60", @redis.hget("cf1:{#{NAMESPACE}/sales/0}:buffer", @id)
  end

  # what the recipe says of EXPIRED
  def test_a_job_that_is_too_late_is_never_counted_again
    request = "job/#{rand(2**64)}"
    epoch = sales.request_epoch(request, @id)
    perform(request, epoch)
    2.times { (@network.now_ms += REMEMBERED + 1).then { sales.request_epoch("other", @id) } }
    error = assert_raises(Counterfoil::OutcomeUnknown) { sales.add_once(request, @id, 1, epoch: epoch) }
    assert_equal "EXPIRED", error.reason
    assert_equal "1", @redis.hget("cf1:{#{NAMESPACE}/sales/0}:buffer", @id)
  end
end
