require_relative "boot"
require "rails"
%w[active_model active_record action_controller action_view active_job].each { |framework| require "#{framework}/railtie" }
Bundler.require(*Rails.groups)

# The namespace of the counters is "shop".
module Shop
  class Application < Rails::Application
    config.load_defaults 6.1
    config.secret_key_base = ENV.fetch("SECRET_KEY_BASE", "of the sample")
    config.eager_load = true
    config.cache_classes = true
    config.consider_all_requests_local = false
    config.logger = ActiveSupport::Logger.new($stdout)
    config.log_level = :warn
    config.active_record.dump_schema_after_migration = false
  end
end
