# frozen_string_literal: true

class Counterfoil
  # the reason of an error if there was no reply
  UNREACHABLE = "UNREACHABLE"

  # The base class of all errors of this library. The error of the Redis library, if there is one, is its `cause`.
  class Error < StandardError
    # @return [String] a word to match, e.g. `FULL`, `RANGE`, `EXPIRED`, `UNCONFIGURED`
    attr_reader :reason
    # @return [String, nil] an explanation for people
    attr_reader :detail
    # @return [Integer, nil] with the reason `RANGE` of a cached counter, its current value
    attr_reader :value

    def initialize(reason, detail = nil, temporary: false, value: nil)
      detail ||= "Redis lost its memory, or the call took too long" if reason == "EXPIRED"
      @reason, @detail, @temporary, @value = reason, detail, temporary, value
      super([reason, detail].compact.join(": "))
    end

    # @return [Boolean] true if the hit was not counted, and the same call may succeed later
    def temporary? = @temporary
  end

  # The hit was not counted. A read that fails raises it as well.
  class NotCounted < Error; end

  # The hit was counted once or not at all, e.g. because no reply arrived in time. Do not repeat it.
  class OutcomeUnknown < Error; end

  # The family, the client of the Redis library, or an option is wrong. The hit was not counted.
  class Misconfigured < Error; end
end
