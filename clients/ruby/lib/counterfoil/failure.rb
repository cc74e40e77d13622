# frozen_string_literal: true

class Counterfoil
  # An exception of a Redis library, and what it proves about the call (lua/README.md, "Errors").
  class Failure
    TEMPORARY = %w[LOADING BUSY CLUSTERDOWN MASTERDOWN TRYAGAIN READONLY MOVED ASK].freeze
    REFUSED = %w[OOM MISCONF NOREPLICAS WRONGTYPE BADSTATE].freeze
    MISCONFIGURED = %w[NOAUTH WRONGPASS BADARG BADKEY CROSSSLOT MOVED].freeze
    KNOWN = [*TEMPORARY, *REFUSED, *MISCONFIGURED, "NOSCRIPT"].freeze
    # names, since an application loads only some of these libraries
    LIBRARIES = /\A(Redis::BaseError|RedisClient::Error|ConnectionPool::(Timeout)?Error|SystemCallError|IOError|SocketError|OpenSSL::SSL::SSLError)\z/
    COMMAND_ERROR = /\A(Redis|RedisClient)::CommandError\z/
    CANNOT_CONNECT = /\A(Redis|RedisClient)::CannotConnectError\z/
    UNSENT = /\A(ConnectionPool::TimeoutError|RedisClient::CheckoutTimeoutError|(Redis|RedisClient)::Cluster::InitialSetupError)\z/
    private_constant(*constants(false))

    # @return [Boolean] true for an exception of a Redis library, for use in `rescue`
    def self.===(error) = kind?(error, LIBRARIES)

    def self.kind?(error, names) = error.class.ancestors.any? { |ancestor| names.match?(ancestor.name.to_s) }

    # @return [String] the code that Redis sent, or what happened to the connection
    attr_reader :reason

    # @param resends [Boolean] the library may have sent the call before it failed to connect
    def initialize(error, resends, is_cluster)
      @text, @is_cluster = error.message, is_cluster
      # Redis 6.2 wraps the errors of commands in a script
      word = @text.sub(/\AERR Error running script.*?: -?(?=[A-Z]{3})/, "")[/\A-?([A-Z]+)\b/, 1]
      @is_reply = KNOWN.include?(word) || Failure.kind?(error, COMMAND_ERROR)
      @is_unsent = Failure.kind?(error, UNSENT) || (!resends && Failure.kind?(error, CANNOT_CONNECT))
      @reason = @is_reply ? word || "ERR" : @is_unsent ? "unreachable" : "no reply"
    end

    # @return [Boolean] Redis may have executed this arrival of the call, or may still do so
    def lost? = !@is_reply && !@is_unsent

    def unknown_script? = @reason == "NOSCRIPT"

    # @return [Boolean] a repeat of the call may succeed; the client of one node cannot follow MOVED
    def temporary? = !@is_reply || (TEMPORARY.include?(@reason) && (@is_cluster || @reason != "MOVED"))

    # @param is_lost [Boolean] an arrival of the call may have been executed
    # @return [Error] the outcome of the call
    def outcome(is_lost)
      return OutcomeUnknown.new(@reason, @text) if is_lost
      return NotCounted.new(@reason, @text, temporary: temporary?) if temporary? || REFUSED.include?(@reason)

      # any other error may come from the middle of a script
      (MISCONFIGURED.include?(@reason) ? Misconfigured : OutcomeUnknown).new(@reason, @text)
    end
  end
end
