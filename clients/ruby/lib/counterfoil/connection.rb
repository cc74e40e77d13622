# frozen_string_literal: true

class Counterfoil
  # Sends calls through a client or pool of the Redis library until there is a reply.
  class Connection
    PAUSE = 0.05
    RENEW_EVERY = 1
    # their clients may be used by one thread at a time
    UNSHARED = %w[RedisClient RedisClient::Cluster].freeze
    CLUSTERS = %w[Redis::Cluster RedisClient::Cluster].freeze
    # when calls that belong together end, and if one of them failed then
    Deadline = Struct.new(:at, :is_missed)
    # The files of redis-client and of redis-rb 4 that write commands.
    WRITERS = %r{/(resp3|command_helper)\.rb\z}
    # A word of a command. A library makes bytes of it once for each send, also for those that it repeats by itself. A tracer or
    # logger may do so as well, which does not count.
    Word = Class.new(String) do
      def sends = @sends || 0
      def bytesize = note(caller_locations(1, 1)) && super # redis-client
      def to_s = note(caller_locations(1, 1)) && super # redis-rb 4

      private

      def note((from)) = @sends = sends + (from.path.match?(WRITERS) ? 1 : 0)
    end
    private_constant(*constants(false))

    # @return [Float] seconds of the monotonic clock
    def self.now = Process.clock_gettime(Process::CLOCK_MONOTONIC)

    # @return [Numeric] seconds
    attr_reader :retry_for

    # @param is_own [Boolean] the library does not repeat calls by itself
    # @param connect [Proc, nil] makes another client of a cluster, which threads may share
    def initialize(redis, retry_for:, is_own:, connect: nil)
      raise Misconfigured.new("BADKEY", "a Redis::Namespace changes keys") if redis.class.name == "Redis::Namespace"
      raise Misconfigured.new("BADARG", "#{redis.class} is not a Redis, RedisClient or pool") unless redis.respond_to?(:with)

      @redis, @retry_for, @is_own, @connect, @renewed_at = redis, retry_for, is_own, connect, 0
      @mutex = Lock.new if UNSHARED.include?(redis.class.name) && !connect
      @monitor = redis.instance_variable_get(:@monitor) if defined?(Redis) && Redis === redis # not if it is in a pool
    end

    # Yields, and calls within the block have one deadline.
    def within
      outer = Thread.current[:counterfoil_deadline]
      Thread.current[:counterfoil_deadline] = outer || deadline
      yield
    ensure
      Thread.current[:counterfoil_deadline] = outer
    end

    # @param is_lost [Boolean] an earlier arrival of the call may have been executed
    # @return [Array(Array, Boolean, Boolean)] the reply; true if no other arrival of the call can exist; true if a reply was lost
    # @raise [Error] the outcome of the call
    def call(name, keys, args, is_lost = false)
      command = ["EVALSHA", Word.new(Scripts::SHA1S.fetch(name)), keys.size, *keys, *args]
      deadline = Thread.current[:counterfoil_deadline] || self.deadline
      # another node of a cluster may be available
      raise Failure.outcome("unreachable", "like the call before", is_lost, true) if deadline.is_missed && !cluster?

      begin
        reply = send_once(command)
        is_lost ||= command[1].sends > 1
        return [reply, !is_lost && only?(command), is_lost] if reply.is_a?(Array) && reply[0].is_a?(String)

        raise OutcomeUnknown.new("unexpected reply", "#{reply.inspect[0, 80]}: in a MULTI or pipeline, or changed by the client")
      rescue Failure => error
        reason = Failure.reason(error, resends?, cluster?)
        is_lost ||= Failure.lost?(reason, resends?, only?(command))
        is_temporary = Failure.temporary?(reason, cluster?)
        command[0, 2] = "EVAL", Scripts::SOURCES.fetch(name) if reason == "NOSCRIPT"
        command[1] = Word.new(command[1])
        renew if is_temporary && @connect
        retry if reason == "NOSCRIPT" || (is_temporary && Connection.now < deadline.at && sleep(PAUSE))
        deadline.is_missed = is_temporary
        raise Failure.outcome(reason, Failure.explain(error), is_lost, is_temporary)
      end
    end

    def cluster?
      return @is_cluster if defined?(@is_cluster)

      is_cluster = ->(client) { (client.class.ancestors.map(&:name) & CLUSTERS).any? }
      # a cluster client connects to answer respond_to?
      @is_cluster = lend { |client| is_cluster.(client) || (client.respond_to?(:_client) && is_cluster.(client._client)) }
    rescue Failure => error
      raise NotCounted.new("unreachable", error.message, temporary: true)
    end

    def close = (@redis.close if @is_own)

    private

    # Replaces the client of a cluster: it asks where slots are once in 3 to 10 s, and a failover takes less. Other threads may still
    # use the old one, so it is not closed.
    def renew
      return if Connection.now < @renewed_at + RENEW_EVERY

      @redis, @renewed_at = @connect.call, Connection.now
    end

    def deadline = Deadline.new(Connection.now + @retry_for, false)

    # pools yield a client, and clients of redis-rb themselves
    def lend(&block)
      return yield @redis if @connect
      return @mutex.synchronize { yield @redis } if @mutex

      @monitor ? Lock.waking(@monitor) { @redis.with(&block) } : @redis.with(&block)
    end

    def send_once(command)
      lend { |client| client.respond_to?(:call_v) ? client.call_v(command) : client.call(*command) }
    end

    # the cluster clients repeat calls whatever their options
    def resends? = !@is_own || cluster?

    # @return [Boolean] the library has sent the command once; false if it does not show how often
    def only?(command) = !resends? || (command[1].sends == 1 && !cluster?)
  end
end
