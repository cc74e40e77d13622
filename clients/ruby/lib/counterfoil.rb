# frozen_string_literal: true

require "monitor"

# Counters that are counted in Redis, stored in MySQL, and exact. Threads share one object, and forks may use that of
# their parent.
#
#   counterfoil = Counterfoil.new(Redis.new, "shop")
#   counterfoil.buffered("product_views").add("product-1")
class Counterfoil
  FILES = %w[version errors lock limit scripts failure outage connection callers family group_commit values counters buffered later
             cached daemons tallies visitors activity series].freeze
  private_constant :FILES
  FILES.each { |file| require_relative "counterfoil/#{file}" }

  MAX_RETRY_FOR = 30
  private_constant :MAX_RETRY_FOR

  # Returns a client with connections of its own, which do not send a call again by themselves.
  #
  # @param url_or_nodes [String, Array<String>] `redis://HOST:PORT`, `rediss://HOST:PORT` (TLS), `unix://SOCKET`; several URLs are nodes of a cluster
  # @param namespace [String]
  # @param timeout [Numeric] seconds to connect, and to wait for a reply. A call is not repeated if the repeat could end after
  #   `retry_for`
  # @param tls_ca [String, nil] with `rediss://` the file of the authority that signed the server's certificate, in PEM
  # @param tls_verify [Boolean] false accepts any certificate
  # @param pool [Integer] the maximum number of connections (to each node of a cluster)
  # @param options those of {#initialize}
  # @return [Counterfoil]
  def self.connect(url_or_nodes, namespace, timeout: 0.4, pool: 5, tls_ca: nil, tls_verify: true, **options)
    is_cluster = url_or_nodes.is_a?(Array)
    require is_cluster ? "redis-cluster-client" : "redis-client"
    settings = { timeout: timeout, reconnect_attempts: 0, (is_cluster ? :nodes : :url) => url_or_nodes }
    tls = { ca_file: tls_ca, verify_mode: (0 unless tls_verify) }.compact # OpenSSL::SSL::VERIFY_NONE
    has_tls = Array(url_or_nodes).all? { |url| url.start_with?("rediss://") }
    raise Misconfigured.new("connect", "tls_ca and tls_verify need an address with rediss://") unless tls.empty? || has_tls

    settings[:ssl_params] = tls unless tls.empty?
    config = is_cluster ? RedisClient.cluster(**settings) : RedisClient.config(**settings)
    connect = -> { config.new_pool(size: pool, timeout: timeout) }
    new(connect.call, namespace, is_own: true, timeout: timeout, connect: (connect if is_cluster), **options)
  rescue LoadError, ArgumentError, Failure => error
    raise Misconfigured.new("connect", error.message)
  end

  # @param redis [Redis, RedisClient, ConnectionPool, #with] a client of redis-rb or redis-client, or a pool of them
  # @param namespace [String] `[a-z0-9_.-]{1,64}`
  # @param retry_for [Numeric] seconds that a counting call may take if Redis is unavailable or no reply arrives, 30 at most. Reads
  #   take half of it.
  # @param later_every [Numeric] seconds between sends of {Buffered#later} and its siblings
  # @param daemon [String, Array<String>, nil] the URL of the daemon, or those of several, for exact values and the rows of cached
  #   counters. The next one is asked if one is unreachable or busy.
  # @param token [String, nil] the daemon's token
  # @param on_error [#call, nil] receives family, id (or name or page), number and error of what `later` could not count
  # @raise [Misconfigured]
  def initialize(redis, namespace, retry_for: 1, later_every: 0.005, daemon: nil, token: nil, on_error: nil, is_own: false,
                 timeout: 0, connect: nil)
    raise Misconfigured.new("retry_for", "expected 0 to #{MAX_RETRY_FOR} seconds") unless (0..MAX_RETRY_FOR).cover?(retry_for)

    connection = Connection.new(redis, retry_for: retry_for, timeout: timeout, is_own: is_own, connect: connect)
    serve(connection, Daemons.new(daemon, token), namespace, later_every, on_error)
  end

  # @return [Buffered]
  def buffered(family) = memo(Buffered, family) { Buffered.new(family("buffered", family), @daemons, @later) }

  # A daemon reads the rows of counters that Redis does not have. The block is for an application that cannot reach a daemon. It
  # must not read in an open transaction, whose snapshot may be old: the counter would forget hits.
  #
  # @param read_row [#call, nil] instead of a block
  # @yieldparam id [String]
  # @yieldreturn [Integer, nil] the value of its row on the primary
  # @return [Cached]
  def cached(family, read_row = nil, &block)
    raise Misconfigured.new("read_row", "needs a daemon, or a block that reads a row") if !read_row && !block && @daemons.none?

    found = family("cached", family)
    Cached.new(found, @daemons, read_row || block || ->(id) { @daemons.find(found, [id])[0] })
  end

  # @return [Series]
  def series(family) = memo(Series, family) { Series.new(family("series", family), @later) }

  # @return [Activity]
  def activity(family) = memo(Activity, family) { Activity.new(family("activity", family), @later) }

  # @return [Visitors]
  def visitors(family) = memo(Visitors, family) { Visitors.new(family("visitors", family), @daemons, @later) }

  # Sends what `later` took in all families, for `retry_for` at most.
  #
  # @raise [Error] the first error since the previous flush
  def flush = @later.flush

  # Sends what `later` took, for 5 s at most, drops what is left, and closes connections that {connect} made. Later calls are
  # refused (`CLOSED`).
  #
  # @raise [Error] the first error, if sums are dropped
  def close
    @later.finish
  ensure
    @daemons.close
    @connection.close
  end

  private

  def serve(connection, daemons, namespace, later_every, on_error)
    @connection, @daemons, @namespace, @callers = connection, daemons, namespace, Callers.new
    @later = Later.new(connection, later_every, on_error)
    @monitor, @memo = Monitor.new, {}
  end

  def family(kind, name) = memo(kind, name) { Family.new(@connection, @callers, @namespace, name, kind) }

  # there is one object for each family, so that threads share its epochs and calls
  def memo(*key) = @memo[key] || @monitor.synchronize { @memo[key] ||= yield }
end
