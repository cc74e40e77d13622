# frozen_string_literal: true

require_relative "lib/counterfoil/version"

Gem::Specification.new do |spec|
  spec.name = "counterfoil"
  spec.version = Counterfoil::VERSION
  spec.authors = ["The counterfoil developers"]
  spec.summary = "Counters that are counted in Redis, stored in MySQL, and exact"
  spec.description = "A client of counterfoil's Lua bundle for redis-rb and redis-client: buffered and cached counters, series, " \
                     "activity and daily visitors, each hit counted exactly once whichever process or connection fails."
  spec.licenses = %w[MIT Apache-2.0]
  spec.homepage = "https://github.com/counterfoil/counterfoil"
  spec.required_ruby_version = ">= 3.1"
  # lib/counterfoil/scripts is the bundle, which the build copies from lua/v1
  spec.files = Dir["lib/**/*.{rb,lua,tt}", "sig/*.rbs", "README.md", "LICENSE-*"]
  spec.metadata["rubygems_mfa_required"] = "true"
  spec.add_dependency "redis-client", ">= 0.14", "< 1"
end
