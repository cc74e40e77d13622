# frozen_string_literal: true

class Counterfoil
  # An exception of a Redis library, and what it proves about the call (lua/README.md, "Errors").
  class Failure
    TEMPORARY = %w[LOADING BUSY CLUSTERDOWN MASTERDOWN TRYAGAIN READONLY MOVED ASK].freeze
    REFUSED = %w[OOM MISCONF NOREPLICAS WRONGTYPE BADSTATE].freeze
    MISCONFIGURED = %w[NOAUTH WRONGPASS BADARG BADKEY CROSSSLOT].freeze
    KNOWN = [*TEMPORARY, *REFUSED, *MISCONFIGURED, "NOSCRIPT"].freeze
    # names, since an application loads only some of these libraries
    LIBRARY_ERRORS = %w[
      Redis::BaseError RedisClient::Error ConnectionPool::Error ConnectionPool::TimeoutError SystemCallError IOError
      SocketError OpenSSL::SSL::SSLError
    ].freeze
    BEFORE_SENDING = %w[
      ConnectionPool::TimeoutError RedisClient::CheckoutTimeoutError Redis::Cluster::InitialSetupError
      RedisClient::Cluster::InitialSetupError
    ].freeze
    CANNOT_CONNECT = %w[Redis::CannotConnectError RedisClient::CannotConnectError].freeze
    COMMAND_ERRORS = %w[Redis::CommandError RedisClient::CommandError].freeze
    private_constant(*constants(false))

    # @return [Boolean] true for an exception of a Redis library, for use in `rescue`
    def self.===(error) = (ancestors_of(error) & LIBRARY_ERRORS).any?

    def self.ancestors_of(error) = error.class.ancestors.map(&:name)

    # @return [String] the code that Redis sent, `ERR` for any that is not known, or what happened to the connection
    attr_reader :reason

    # @param resends [Boolean] the library may have sent the call before it failed to connect
    def initialize(error, resends:)
      @ancestors = self.class.ancestors_of(error)
      word = error.message[/\A-?([A-Z]+)\b/, 1]
      # Redis 6.2 wraps the errors of commands in a script
      word = error.message[/: -?([A-Z]{3,})\b/, 1] || word if error.message.start_with?("ERR Error running script")
      @is_reply = KNOWN.include?(word) || is_a(COMMAND_ERRORS)
      @is_sent = !@is_reply && !is_a(BEFORE_SENDING) && (resends || !is_a(CANNOT_CONNECT))
      @reason = @is_reply ? word || "ERR" : @is_sent ? "no reply" : "unreachable"
    end

    # @return [Boolean] Redis may have executed this arrival of the call, or may still do so
    def lost? = @is_sent

    def unknown_script? = @reason == "NOSCRIPT"

    # @return [Boolean] a repeat of the call may succeed
    def temporary? = !@is_reply || TEMPORARY.include?(@reason)

    # @return [Class] the error to raise if no earlier arrival of the call was lost
    def error_class
      return Misconfigured if MISCONFIGURED.include?(@reason) || @reason == "MOVED"
      return NotCounted if temporary? || REFUSED.include?(@reason)

      OutcomeUnknown # perhaps executed in part
    end

    private

    def is_a(names) = (@ancestors & names).any?
  end
end
