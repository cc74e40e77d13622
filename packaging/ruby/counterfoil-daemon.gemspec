# frozen_string_literal: true

Gem::Specification.new do |spec|
  spec.name = "counterfoil-daemon"
  # as `./dev release` sets them
  spec.version = ENV.fetch("COUNTERFOIL_VERSION")
  spec.platform = ENV.fetch("COUNTERFOIL_PLATFORM")
  spec.authors = ["The counterfoil developers"]
  spec.summary = "The daemon of counterfoil, which brings counters from Redis to MySQL exactly once"
  spec.licenses = %w[MIT Apache-2.0]
  spec.homepage = "https://github.com/counterfoil/counterfoil"
  spec.required_ruby_version = ">= 3.1"
  spec.bindir = "exe"
  spec.executables = ["counterfoil"]
  spec.files = Dir["exe/*", "libexec/*", "README.md", "LICENSE*"]
  spec.metadata["rubygems_mfa_required"] = "true"
end
