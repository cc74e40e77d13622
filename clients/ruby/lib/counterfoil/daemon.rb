# frozen_string_literal: true

require "net/http"

class Counterfoil
  # The HTTP API of the daemon (docs/http-api.md).
  class Daemon
    TIMEOUT = 10
    PAUSE = 0.05
    private_constant :TIMEOUT, :PAUSE

    # @param url [String] e.g. `http://127.0.0.1:9292`
    # @param token [String, nil]
    # @param retry_for [Numeric] seconds
    def initialize(url, token, retry_for)
      @uri, @headers, @retry_for = URI("#{url.chomp("/")}/api/v1/"), token ? { "Authorization" => "Bearer #{token}" } : {}, retry_for
      raise URI::Error, "#{url} is no URL of HTTP" unless @uri.is_a?(URI::HTTP)
    rescue URI::Error => error
      raise Misconfigured.new("daemon", error.message)
    end

    # @return [Integer] the exact value, which is that of the row for a cached counter that is not in Redis
    def value(family, id)
      uri = @uri + "values?#{URI.encode_www_form(family: family.name, id: id)}"
      deadline = Connection.now + @retry_for
      loop do
        code, body = request(uri)
        value = body[/"value": ?(-?\d+)[,}]/, 1] if code == "200" # Net::HTTP returns a part of a body as well
        return Integer(value) if value
        raise Misconfigured.new("daemon", "#{code} #{body}") if code&.match?(/\A[34]/) && code != "429"
        raise NotCounted.new("daemon", "#{@uri}: #{code} #{body}", temporary: true) if Connection.now > deadline

        sleep(PAUSE)
      end
    end

    private

    # @return [Array(String, String)] the code, nil if there is no reply, and the body
    def request(uri)
      options = { use_ssl: uri.scheme == "https", open_timeout: TIMEOUT, read_timeout: TIMEOUT }
      # without a proxy, which would receive the token
      reply = Net::HTTP.start(uri.hostname, uri.port, nil, **options) { |http| http.get(uri.request_uri, @headers) }
      [reply.code, reply.body]
    rescue SystemCallError, IOError, SocketError, Net::OpenTimeout, Net::ReadTimeout, Net::WriteTimeout, Net::ProtocolError,
           Net::HTTPBadResponse, Net::HTTPHeaderSyntaxError, Zlib::Error, OpenSSL::SSL::SSLError => error
      [nil, error.message]
    end
  end
end
