# frozen_string_literal: true

class Counterfoil
  # Sends calls through a client or pool of the Redis library until there is a reply.
  class Connection
    PAUSE = 0.05
    # their clients may be used by one thread at a time
    UNSHARED = %w[RedisClient RedisClient::Cluster].freeze
    private_constant :PAUSE, :UNSHARED

    # @return [Numeric] seconds
    attr_reader :retry_for

    # @param is_own [Boolean] the library does not repeat calls by itself
    def initialize(redis, retry_for:, is_own:)
      check(redis)
      @redis = redis
      @retry_for = retry_for
      @is_own = is_own
      @mutex = Mutex.new if UNSHARED.include?(redis.class.name)
    end

    # @param is_lost [Boolean] an earlier arrival of the call may have been executed
    # @return [Array(Array, Boolean)] the reply, and true if no other arrival of the call can exist
    # @raise [Error] with the outcome of the call
    def call(name, keys, args, is_lost = false)
      script = Script[name]
      command = script.command(keys, args)
      deadline = Connection.now + @retry_for
      begin
        reply = send_once(command)
        raise unexpected(reply) unless reply.is_a?(Array) && reply[0].is_a?(String)

        [reply, !is_lost && !resends?]
      rescue Failure => error
        failure = Failure.new(error, resends: resends?)
        is_lost ||= failure.lost?
        if failure.unknown_script?
          command = script.command(keys, args, with_source: true)
          retry
        elsif may_repeat?(failure) && Connection.now < deadline
          sleep(PAUSE)
          retry
        end
        raise outcome(failure, error, is_lost)
      end
    end

    def cluster?
      return @is_cluster if defined?(@is_cluster)

      @is_cluster = @redis.with { |client| cluster_client?(client) }
    rescue Failure => error
      raise NotCounted.new("unreachable", error.message, temporary: true)
    end

    def close = (@redis.close if @is_own)

    # @return [Float] seconds of the monotonic clock
    def self.now = Process.clock_gettime(Process::CLOCK_MONOTONIC)

    private

    def check(redis)
      if redis.class.name == "Redis::Namespace"
        raise Misconfigured.new("BADKEY", "counterfoil's keys need a client without a prefix, not a Redis::Namespace")
      elsif !redis.respond_to?(:with)
        raise Misconfigured.new("BADARG", "expected a Redis, RedisClient or pool of them, not #{redis.class}")
      end
    end

    def send_once(command)
      return @mutex.synchronize { @redis.call_v(command) } if @mutex

      # pools yield a client, and clients themselves
      @redis.with { |client| client.respond_to?(:call_v) ? client.call_v(command) : client.call(*command) }
    end

    # the cluster clients repeat calls whatever their options
    def resends? = !@is_own || cluster?

    # a client of one node cannot follow MOVED
    def may_repeat?(failure) = failure.temporary? && (failure.reason != "MOVED" || cluster?)

    def cluster_client?(client)
      inner = client.respond_to?(:_client) ? client._client : client
      [client, inner].any? { |one| one.class.ancestors.any? { |a| %w[Redis::Cluster RedisClient::Cluster].include?(a.name) } }
    end

    def unexpected(reply)
      OutcomeUnknown.new("unexpected reply", "#{reply.inspect[0, 100]}; counterfoil needs a client outside of MULTI and " \
        "pipelines that returns replies as Redis sends them")
    end

    def outcome(failure, error, is_lost)
      return OutcomeUnknown.new(failure.reason, error.message) if is_lost
      return NotCounted.new(failure.reason, error.message, temporary: true) if may_repeat?(failure)

      failure.error_class.new(failure.reason, error.message)
    end
  end
end
