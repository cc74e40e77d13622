# frozen_string_literal: true

require "counterfoil"
require "rails/railtie"

# Counts rows and views of a Rails application.
#
#   gem "counterfoil", require: "counterfoil/rails"
#
# `config.counterfoil` has `redis` (a URL, several of a cluster, or a client), `namespace` and the options of
# {Counterfoil.connect}. By default they are `COUNTERFOIL_REDIS`, `COUNTERFOIL_DAEMON` and `COUNTERFOIL_TOKEN` of the environment,
# and the name of the application. Without a Redis of its own, the environment `test` counts in memory.
class Counterfoil
  class << self
    # Sets the client, as a test does: `Counterfoil.client = Counterfoil::Testing.new("shop")`.
    attr_writer :client

    # @return [Counterfoil] the application's client, made at its first use. Forks and threads share it.
    def client = @client || CLIENT.synchronize { @client ||= Rails.connect(::Rails.application) }
  end
  CLIENT = Mutex.new
  private_constant :CLIENT

  # The modules for applications: {Rows}, {Exact}, {Views} and {Job}.
  module Rails
    %i[Exact Job Rows Views].each { |name| autoload(name, "counterfoil/rails/#{name.downcase}") }

    class << self
      # @api private
      def connect(application)
        options = settings(application)
        redis, namespace = options.values_at(:redis, :namespace)
        if ::Rails.env.test? && !redis
          require "counterfoil/testing"
          return Testing.new(namespace)
        end
        redis ||= "redis://localhost:6379"
        has_url = redis.is_a?(String) || redis.is_a?(Array)
        Counterfoil.public_send(has_url ? :connect : :new, redis, namespace, **options.except(:redis, :namespace))
      end

      # @api private
      def settings(application)
        { namespace: application.class.module_parent_name.underscore, redis: ENV["COUNTERFOIL_REDIS"], token: ENV["COUNTERFOIL_TOKEN"],
          daemon: ENV.fetch("COUNTERFOIL_DAEMON", "http://localhost:9292").split(",") }.merge(application.config.counterfoil.to_h)
      end

      # Keeps a hit in this process if it may count later. Logs any other error.
      #
      # @api private
      def settle(error, counters, *hit)
        raise error unless error.is_a?(NotCounted) && error.temporary?

        counters.later(*hit)
      rescue StandardError => refused
        log(refused, counters.name, *hit.first(2))
      end

      # @api private
      def log(error, family, *hit)
        ::Rails.logger&.error("counterfoil: #{family} #{hit.join(" ")}: #{error.class.name.demodulize}: #{error.message}")
        nil
      end
    end

    # Adds the macros to models and controllers.
    class Railtie < ::Rails::Railtie
      config.counterfoil = ActiveSupport::OrderedOptions.new

      initializer "counterfoil" do
        ActiveSupport.on_load(:active_record) { extend Rows, Exact }
        ActiveSupport.on_load(:action_controller) { include Views }
      end
    end
  end
end
