# frozen_string_literal: true

class Counterfoil
  # An object that takes calls until it is closed.
  module Closable
    def close = @is_closed = true

    # @raise [NotCounted] after {#close}
    def check_open
      raise NotCounted.new("CLOSED", "the client is closed, and takes no further calls") if @is_closed
    end
  end

  # Sends calls through a client or pool of the Redis library until there is a reply.
  class Connection
    include Closable

    PAUSE = 0.05
    RENEW_EVERY = 1
    # the classes of clients that one thread may use at a time
    UNSHARED = %w[RedisClient RedisClient::Cluster].freeze
    CLUSTERS = %w[Redis::Cluster RedisClient::Cluster].freeze
    # The files of redis-client and of redis-rb 4 that write commands.
    WRITERS = %r{/(resp3|command_helper)\.rb\z}
    # A word of a command that counts its sends. A library asks for its bytes once for each send, also for those that it repeats by
    # itself. A tracer or logger may ask as well, but not from the files of WRITERS.
    Word = Class.new(String) do
      def sends = @sends || 0
      def bytesize = note(caller_locations(1, 1)) && super # redis-client
      def to_s = note(caller_locations(1, 1)) && super # redis-rb 4

      private

      def note((from)) = @sends = sends + (from.path.match?(WRITERS) ? 1 : 0)
    end
    private_constant(*constants(false))

    # @return [Numeric] seconds
    attr_reader :retry_for

    # @param timeout [Numeric] seconds that a send may take, 0 if they are not known
    # @param is_own [Boolean] the library does not repeat calls by itself
    # @param connect [Proc, nil] makes another client of a cluster. Threads may share such a client
    def initialize(redis, retry_for:, timeout:, is_own:, connect: nil)
      raise Misconfigured.new("BADKEY", "a Redis::Namespace changes keys") if redis.class.name == "Redis::Namespace"
      raise Misconfigured.new("BADARG", "#{redis.class} is not a Redis, RedisClient or pool") unless redis.respond_to?(:with)

      @redis, @retry_for, @timeout, @is_own, @connect, @renewed_at = redis, retry_for, timeout, is_own, connect, 0
      @outages, @of_outages, @ends_at = {}, Lock.new, Float::INFINITY
      @mutex = Lock.new if UNSHARED.include?(redis.class.name) && !connect
      @monitor = redis.instance_variable_get(:@monitor) if defined?(Redis) && Redis === redis # a client in a pool does not need it
    end

    # @param home [Array<String>] the keys of `family_epoch` at the home of the call
    # @param is_lost [Boolean] an earlier arrival of the call may have been executed
    # @return [Array(Array, Boolean, Boolean)] the reply; true if the call was sent once only; true if an earlier arrival of the call
    #   may have been executed
    # @raise [Error] the outcome of the call
    def call(name, home, keys, args, is_lost = false)
      command, outage = evalsha(name, keys, args), outage(cluster? ? home[0] : nil)
      limit, longest, began = Limit.at || (Limit.now + @retry_for), @timeout, nil
      begin
        outage.check(is_lost)
        began = Limit.now
        reply = send_once(command) { outage.check(is_lost) }
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
        longest = [longest, Limit.now - began].max
        retry if reason == "NOSCRIPT" || (is_temporary && Limit.now + PAUSE + longest < [limit, @ends_at].min && sleep(PAUSE))
        start_outage(outage, reason, error) { available?(home) } if Failure.outage?(reason, error)
        raise Failure.outcome(reason, Failure.explain(error), is_lost, is_temporary)
      end
    end

    # Makes all calls end in time, also those that other threads make, and tries again in an outage.
    def end_at(time)
      @ends_at = time
      stop_outages
    end

    def cluster?
      return @is_cluster if defined?(@is_cluster)

      outage(nil).check
      is_cluster = ->(client) { (client.class.ancestors.map(&:name) & CLUSTERS).any? }
      # a cluster client connects to answer respond_to?
      @is_cluster = lend { |client| is_cluster.(client) || (client.respond_to?(:_client) && is_cluster.(client._client)) }
    rescue Failure => error
      start_outage(outage(nil), UNREACHABLE, error) { lend { true } }
      raise NotCounted.new(UNREACHABLE, error.message, temporary: true)
    end

    def close
      super
      stop_outages
      @redis.close if @is_own
    end

    private

    def evalsha(name, keys, args) = ["EVALSHA", Word.new(Scripts::SHA1S.fetch(name)), keys.size, *keys, *args]

    def stop_outages = @of_outages.synchronize { @outages.values }.each(&:stop)

    # @param home [String, nil] in a cluster, whose nodes fail separately, a key of the partition
    def outage(home) = @outages[home] || @of_outages.synchronize { @outages[home] ||= Outage.new("Redis") }

    def start_outage(outage, reason, error)
      outage.start(Failure.code(reason), Failure.explain(error), error) do
        yield
        true
      rescue Failure => again
        !Failure.outage?(Failure.reason(again, resends?, cluster?), again)
      end
    end

    # asks for an epoch, which every client may do
    def available?(home)
      renew if @connect
      send_once(evalsha("family_epoch", home, ["", "", "", ""]))
    end

    # Replaces the client of a cluster. A client asks where the slots are only once in 3 to 10 s, and a failover takes less. The old
    # client is not closed, since other threads may still use it.
    def renew
      return if Limit.now < @renewed_at + RENEW_EVERY

      @redis, @renewed_at = @connect.call, Limit.now
    end

    # `with` of a pool yields a client, `with` of a client of redis-rb yields the client itself
    def lend(&block)
      return yield @redis if @connect
      return @mutex.synchronize { yield @redis } if @mutex

      @monitor ? Lock.waking(@monitor) { @monitor.synchronize { @redis.with(&block) } } : @redis.with(&block)
    end

    # Yields when there is a connection, which may take a while.
    def send_once(command)
      lend do |client|
        yield if block_given?
        client.respond_to?(:call_v) ? client.call_v(command) : client.call(*command)
      end
    end

    # clients of a cluster repeat calls whatever their options are
    def resends? = !@is_own || cluster?

    # @return [Boolean] the library has sent the command once; false if it does not show how often
    def only?(command) = !resends? || (command[1].sends == 1 && !cluster?)
  end
end
