# frozen_string_literal: true

class Counterfoil
  # An exception of a Redis library, and what it proves about the call (lua/README.md, "Errors and lost replies").
  module Failure
    # codes after which a repeat may succeed
    TEMPORARY = ["no reply", UNREACHABLE, *%w[LOADING BUSY CLUSTERDOWN MASTERDOWN NOREPLICAS TRYAGAIN READONLY MOVED ASK]].freeze
    # codes with which every call would fail; the others of TEMPORARY are about one call
    OUTAGES = ["no reply", UNREACHABLE, *%w[LOADING BUSY CLUSTERDOWN MASTERDOWN]].freeze
    # refusals of a new connection, after the library may have sent the call over another one
    CONNECTING = %w[LOADING BUSY CLUSTERDOWN MASTERDOWN TRYAGAIN READONLY NOAUTH WRONGPASS].freeze
    LASTING = %w[WRONGTYPE BADSTATE].freeze
    REFUSED = ["OOM", "MISCONF", *LASTING].freeze # a repeat would be refused as well; if LASTING, so would a later call
    MISCONFIGURED = %w[NOAUTH WRONGPASS BADARG BADKEY CROSSSLOT MOVED].freeze
    CODES = [*TEMPORARY, *REFUSED, *MISCONFIGURED, "NOSCRIPT"].freeze
    # names of classes, since an application loads only some of these libraries
    LIBRARIES = %w[Redis::BaseError RedisClient::Error ConnectionPool::Error ConnectionPool::TimeoutError SystemCallError IOError
                   SocketError OpenSSL::SSL::SSLError].freeze
    REPLIES = %w[Redis::CommandError RedisClient::CommandError].freeze
    CANNOT_CONNECT = %w[Redis::CannotConnectError RedisClient::CannotConnectError].freeze
    FULL = "ERR max number of clients" # the reply on a new connection that Redis closes at once
    UNSENT = %w[ConnectionPool::TimeoutError RedisClient::Cluster::InitialSetupError].freeze
    FULL_POOL = %w[RedisClient::CheckoutTimeoutError].freeze # the client of a cluster may have sent the call before
    FULL_POOLS = ["ConnectionPool::TimeoutError", *FULL_POOL].freeze
    private_constant(*constants(false))

    class << self
      # @return [Boolean] true for an exception of a Redis library, for use in `rescue`
      def ===(error) = any?(error, LIBRARIES)

      # @param resends [Boolean] the library may have sent the call before it failed to connect
      # @return [String] the code that Redis sent, {UNREACHABLE} if the call was not sent, or else `no reply`
      def reason(error, resends, is_cluster)
        # Redis 6.2 wraps the errors of commands in a script
        code = error.message.sub(/\AERR Error running script.*?: -?(?=[A-Z]{3})/, "")[/\A-?([A-Z]+)\b/, 1]
        is_refused = error.message.start_with?(FULL) || any?(error, CANNOT_CONNECT)
        return code || "ERR" if CODES.include?(code) || (any?(error, REPLIES) && !is_refused)

        is_unsent = any?(error, UNSENT) || (!is_cluster && any?(error, FULL_POOL)) || (!resends && is_refused)
        is_unsent ? UNREACHABLE : "no reply"
      end

      # @param resends [Boolean] the library may send a call over several connections
      # @param is_only [Boolean] it has sent this one once
      # @return [Boolean] an arrival of the call may have been executed: a refusal tells nothing about others
      def lost?(reason, resends, is_only)
        return reason == "no reply" if !resends || ["NOSCRIPT", UNREACHABLE].include?(reason)

        !is_only || reason == "no reply" || CONNECTING.include?(reason)
      end

      # @return [Boolean] a repeat of the call may succeed; the client of one node cannot follow MOVED
      def temporary?(reason, is_cluster) = TEMPORARY.include?(reason) && (is_cluster || reason != "MOVED")

      # @return [Boolean] the server is unavailable, and not only a connection of the application's pool
      def outage?(reason, error) = OUTAGES.include?(reason) && !any?(error, FULL_POOLS)

      # @return [String] the reason of a call that is not counted
      def code(reason) = reason == "no reply" ? UNREACHABLE : reason

      # @return [String] the message, with the options that help against it
      def explain(error)
        return error.message unless error.message.include?("certificate verify failed")

        "#{error.message}: connect(tls_ca: FILE) names the authority of the server, tls_verify: false accepts any"
      end

      # @param is_lost [Boolean] an arrival of the call may have been executed
      # @return [Error] the outcome of the call
      def outcome(reason, text, is_lost, is_temporary)
        return OutcomeUnknown.new(reason, text) if is_lost
        return NotCounted.new(code(reason), text, temporary: !LASTING.include?(reason)) if is_temporary || REFUSED.include?(reason)

        # any other error may come from the middle of a script
        (MISCONFIGURED.include?(reason) ? Misconfigured : OutcomeUnknown).new(reason, text)
      end

      private

      def any?(error, names) = error.class.ancestors.any? { |ancestor| names.include?(ancestor.name) }
    end
  end
end
