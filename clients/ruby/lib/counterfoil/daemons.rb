# frozen_string_literal: true

require "json"
require "net/http"

class Counterfoil
  # Asks daemons for exact values (docs/http-api.md), over connections that are kept.
  class Daemons
    IDS = 1000 # the most in a request
    PAUSE = 0.05
    PROBE = 0.4 # seconds
    IDLE = 8 # seconds after which a connection is not used again: the daemon closes it after 10
    FAILURES = [SystemCallError, IOError, SocketError, Net::OpenTimeout, Net::ReadTimeout, Net::WriteTimeout, Net::ProtocolError,
                Net::HTTPBadResponse, Net::HTTPHeaderSyntaxError, Zlib::Error, OpenSSL::SSL::SSLError].freeze
    private_constant(*constants(false))

    # @param urls [String, Array<String>, nil] e.g. `http://127.0.0.1:9292`
    # @param token [String, nil]
    def initialize(urls, token)
      @uris, @first, @outage = Array(urls).map { |url| uri(url) }, 0, Outage.new("the daemon")
      @headers = { "Content-Type" => "application/json" }
      @headers["Authorization"] = "Bearer #{token}" if token
      @idle = @uris.to_h { |uri| [uri, Thread::Queue.new] }
    end

    def none? = @uris.empty?

    # Without the token: an error message of Ruby may show what this returns.
    def inspect = "#<#{self.class} #{@uris.join(" ")}>"

    # @return [Array<Integer>] the exact values in the order of the ids
    def values(family, ids) = find(family, ids).map { |value| value || 0 }

    # @return [Array<Integer, nil>] nil where only the application makes the row of a cached counter, and has not
    def find(family, ids)
      raise Misconfigured.new("daemon", "values need the option `daemon`") if none?

      ids.each_slice(IDS).flat_map { |some| ask(family, JSON.generate(family: family.name, ids: some), some.size) }
    end

    def close = @outage.stop

    private

    def uri(url)
      uri = URI("#{url.to_s.chomp("/")}/api/v1/values")
      uri.is_a?(URI::HTTP) && uri.hostname ? uri : raise(URI::Error, "expected http://HOST:PORT, not #{url}")
    rescue URI::Error => error
      raise Misconfigured.new("daemon", error.message)
    end

    # Asks one daemon after the other, and begins again while none of them is available.
    def ask(family, body, size)
      is_reached = false
      loop do
        explanation, pause = nil, PAUSE
        @uris.rotate(@first).each_with_index do |uri, i|
          @outage.check
          # a silent one leaves time for the others
          code, text, retry_after = post(uri, body, (Limit.at - Limit.now) / (@uris.size - i))
          values = values_of(text) if code == "200"
          return values.tap { @first = @uris.index(uri) } if values&.size == size

          explanation, is_reached = "#{uri}: #{code} #{text}", is_reached || code
          raise refused(family, code, explanation) if code&.match?(/\A[34]/) && code != "429"

          # a random pause: clients that were refused together would be refused together again
          pause = [pause, retry_after * rand(0.5..1.0)].max
        end
        fail_with(explanation, is_reached) if Limit.now + pause > Limit.at

        sleep(pause)
      end
    end

    # Returns the error of a refusal. A 404 that does not name the family is not about it.
    def refused(family, code, explanation)
      return family.unconfigured("; #{explanation}") if code == "404" && explanation.include?(family.name)

      Misconfigured.new("daemon", explanation)
    end

    def fail_with(explanation, is_reached)
      @outage.start(UNREACHABLE, explanation) { @uris.any? { |uri| alive?(uri) } } unless is_reached
      raise NotCounted.new(is_reached ? "daemon" : UNREACHABLE, explanation, temporary: true)
    end

    # @return [Array(String, String, Integer)] the code, nil if there is no reply, the body, and `Retry-After`
    def post(uri, body, seconds)
      seconds = [seconds, PAUSE].max
      http = idle(uri) || connect(uri, seconds)
      http.read_timeout = http.write_timeout = seconds
      reply = http.post(uri.request_uri, body, @headers)
      @idle[uri] << [Process.pid, http]
      [reply.code, reply.body.to_s, reply["Retry-After"].to_i]
    rescue *FAILURES => error
      [nil, error.message, 0]
    end

    # @return [Boolean] true after any reply of the daemon
    def alive?(uri)
      http = connect(uri, PROBE)
      http.read_timeout = PROBE
      http.get("/healthz")
    rescue *FAILURES
      false
    ensure
      http&.finish
    end

    # @return [Net::HTTP, nil] a connection of this process, not of its parent
    def idle(uri)
      loop do
        pid, http = @idle[uri].pop(true)
        return http if pid == Process.pid
      end
    rescue ThreadError # there is none
      nil
    end

    # Net::HTTP connects again by itself if the daemon has closed the connection.
    def connect(uri, seconds)
      # without a proxy, which would receive the token
      http = Net::HTTP.new(uri.hostname, uri.port, nil)
      http.use_ssl = uri.scheme == "https"
      http.open_timeout, http.keep_alive_timeout = seconds, IDLE
      http.start
    end

    # @return [Array<Integer, nil>, nil] nil if a part of the reply is missing: Net::HTTP returns the rest as if it were whole
    def values_of(text)
      reply = JSON.parse(text)
      reply["values"] if reply.is_a?(Hash)
    rescue JSON::ParserError
      nil
    end
  end
end
