# frozen_string_literal: true

require "digest"

class Counterfoil
  # A Lua script of the bundle, and the command that runs it.
  class Script
    # The folder of the bundle inside the installed package.
    FOLDER = File.join(__dir__, "scripts")

    # @return [String] the SHA-1 of the source, in hexadecimal
    attr_reader :sha1

    # @return [Script]
    def self.[](name) = ALL.fetch(name)

    def initialize(path)
      @source = File.binread(path).freeze
      @sha1 = Digest::SHA1.hexdigest(@source).freeze
    end

    # @return [Array<String, Integer>] the command by the script's hash, or with its source where Redis does not know it
    def command(keys, args, with_source: false)
      name, script = with_source ? ["EVAL", @source] : ["EVALSHA", @sha1]
      [name, script, keys.size, *keys, *args]
    end

    ALL = Dir[File.join(FOLDER, "*.lua")].to_h { |path| [File.basename(path, ".lua"), new(path)] }.freeze
    private_constant :ALL
  end
end
