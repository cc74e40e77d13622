# frozen_string_literal: true

require "json"
require "net/http"
require "uri"

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
      @uri = URI("#{url.chomp("/")}/api/v1/")
      @token = token
      @retry_for = retry_for
    end

    # @return [Integer] the exact value
    def value(family, id) = get("values", family, id)

    # @return [Integer] the value of the row, 0 if there is none
    def row(family, id) = get("rows", family, id)

    private

    def get(kind, family, id)
      uri = @uri + "#{kind}?#{URI.encode_www_form(family: family.name, id: id)}"
      deadline = Connection.now + @retry_for
      loop do
        reply = request(uri)
        return JSON.parse(reply.body)[kind][0]["value"] if reply.is_a?(Net::HTTPOK)

        is_temporary = reply.nil? || reply.is_a?(Net::HTTPServiceUnavailable)
        message = "#{reply ? "#{reply.code} #{reply.body}" : "unreachable"} (#{@uri})"
        raise Misconfigured.new("daemon", message) unless is_temporary
        raise NotCounted.new("daemon", message, temporary: true) if Connection.now > deadline

        sleep(PAUSE)
      end
    end

    # @return [Net::HTTPResponse, nil]
    def request(uri)
      get = Net::HTTP::Get.new(uri)
      get["Authorization"] = "Bearer #{@token}" if @token
      options = { use_ssl: uri.scheme == "https", open_timeout: TIMEOUT, read_timeout: TIMEOUT }
      Net::HTTP.start(uri.host, uri.port, **options) { |http| http.request(get) }
    rescue SystemCallError, IOError, SocketError, Net::OpenTimeout, Net::ReadTimeout, Net::ProtocolError, OpenSSL::SSL::SSLError
      nil
    end
  end
end
