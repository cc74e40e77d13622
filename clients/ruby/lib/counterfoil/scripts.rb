# frozen_string_literal: true

require "digest"

class Counterfoil
  # The Lua scripts of the bundle, by name.
  module Scripts
    # The folder of the bundle inside the installed package.
    FOLDER = File.join(__dir__, "scripts")
    SOURCES = Dir["#{FOLDER}/*.lua"].to_h { |path| [File.basename(path, ".lua"), File.binread(path).freeze] }.freeze
    SHA1S = SOURCES.transform_values { |source| Digest::SHA1.hexdigest(source).freeze }.freeze
  end
end
