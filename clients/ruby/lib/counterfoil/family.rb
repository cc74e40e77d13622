# frozen_string_literal: true

require "json"
require "zlib"

class Counterfoil
  # A family of counters: its keys, settings and epochs, and its counting calls.
  class Family
    # Of one home. `before` is the epoch before, `until` the time at which to ask again.
    Epoch = Struct.new(:now, :before, :until)
    # A counting call, whose repeats are the same.
    Call = Struct.new(:script, :home, :keys, :args, :epoch, :caller, :is_sent)
    VALID_FOR = 30
    CONFIGURED_WITHIN = 3
    NAME = /\A[a-z0-9_.-]{1,64}\z/
    I64 = (-2**63..2**63 - 1)
    private_constant :Epoch, :Call, :VALID_FOR, :CONFIGURED_WITHIN, :NAME, :I64

    # @return [Connection]
    attr_reader :connection
    # @return [String] `NAMESPACE/FAMILY`
    attr_reader :name
    attr_reader :namespace, :family

    def initialize(connection, callers, namespace, family, kind)
      unless [namespace, family].all?(NAME)
        raise Misconfigured.new("BADKEY", "#{namespace.inspect} and #{family.inspect} must match [a-z0-9_.-]{1,64}")
      end

      @connection = connection
      @callers = callers
      @namespace = namespace
      @family = family
      @kind = kind
      @name = "#{namespace}/#{family}"
      @mutex = Mutex.new
      @fences = {}
      forget
    end

    # @return [Integer] the number of partitions
    def partitions
      epoch(0) unless @partitions
      @partitions
    end

    # @return [Hash] as the daemon configured them
    def settings
      epoch(0) unless @settings
      @settings
    end

    # @return [Integer] the partition of an id
    def partition(id) = Zlib.crc32(id) % partitions

    def keys(partition, *names) = names.map { |name| "cf1:{#{@name}/#{partition}}:#{name}" }

    # @return [Integer] the partition that stores the callers and the epoch of a call
    def home(partition) = @connection.cluster? ? partition : 0

    # Returns the epoch for new calls.
    #
    # @param fresh [Boolean] asks Redis in any case
    def epoch(home, fresh: false)
      known = @epochs[home]
      return known if known && !fresh && Connection.now < known.until

      ask(home)
    end

    # Prepares a counting call.
    #
    # @return [Call]
    def call(script, home, keys, args)
      Call.new(script, home, fence(home) + keys, args, epoch(home).now, @callers.take, false)
    end

    # Makes a counting call, once. May be called again if the thread was interrupted.
    #
    # @return [Array] the reply: `OK`, `DUP` or `OUTSIDE`, and what follows
    def count(call)
      loop do
        args = [call.caller.name, call.caller.n, call.epoch, "", *call.args]
        is_lost = call.is_sent
        call.is_sent = true
        reply, only = @connection.call(call.script, call.keys, args, is_lost)
        @callers.give_back(call.caller)
        return reply unless refused?(reply, call.home)
        raise OutcomeUnknown, "EXPIRED" unless only

        call.epoch, call.caller, call.is_sent = epoch(call.home).now, @callers.take, false
      end
    end

    # Makes a counting call whose name is that of its request, as long as Redis remembers requests of `epoch`.
    def count_request(caller, epoch, home, keys, args)
      deadline = Connection.now + @connection.retry_for
      loop do
        known = epoch(home)
        epoch ||= known.now
        unless [known.now, known.before].include?(epoch)
          raise OutcomeUnknown.new("EXPIRED", "Redis may have forgotten the request, which is older than its epoch")
        end

        reply, = @connection.call("buffered_add", fence(home) + keys, [caller, 1, known.before, "", *args])
        return reply unless refused?(reply, home)
        raise OutcomeUnknown, "EXPIRED" if Connection.now > deadline
      end
    end

    # Makes a call that only reads, or that may be repeated.
    def read(script, keys, args)
      @connection.call(script, keys, args)[0]
    rescue OutcomeUnknown => error
      raise Misconfigured.new(error.reason, error.detail) if error.reason == "unexpected reply"

      raise NotCounted.new(error.reason, error.detail, temporary: error.reason == "no reply")
    end

    # @return [String] the id as UTF-8
    def text(id, max = 255)
      id = id.to_s if id.is_a?(Symbol) || id.is_a?(Integer)
      raise NotCounted.new("BADID", "#{id.inspect} is not a String") unless id.is_a?(String)

      id = id.encoding == Encoding::BINARY ? id.dup.force_encoding("UTF-8") : id.encode("UTF-8") if id.encoding != Encoding::UTF_8
      raise NotCounted.new("BADID", "expected 1 to #{max} bytes of UTF-8") unless id.valid_encoding? && id.bytesize.between?(1, max)

      id
    rescue EncodingError => error
      raise NotCounted.new("BADID", error.message)
    end

    # @return [String] any bytes
    def bytes(string, max = 255)
      return string if string.is_a?(String) && string.bytesize.between?(1, max)

      raise NotCounted.new("BADARG", "expected a String of 1 to #{max} bytes")
    end

    # @return [Integer] n, which must be within `range`
    def integer(number, range = I64)
      return number if number.is_a?(Integer) && range.include?(number) && I64.include?(number)

      raise NotCounted.new("BADARG", "#{number.inspect} is not an integer of 64 bits from #{range.begin} on")
    end

    private

    def fence(home) = @fences[home] ||= keys(home, "calls", "calls_before").freeze

    def refused?(reply, home)
      if reply[0] == "PASSED"
        raise OutcomeUnknown.new("PASSED", "another process uses this caller's name, or it has several calls in flight")
      end
      return false unless reply[0] == "EXPIRED"

      @mutex.synchronize { @epochs.delete(home) }
      true
    end

    def forget
      @epochs = {}
      @partitions = @settings = nil
    end

    def ask(home)
      asked_at = Connection.now
      begin
        status, *words = family_epoch(home)
        # after a loss of memory the daemon configures the family again
        is_early = status == "UNCONFIGURED" && @partitions && Connection.now < asked_at + CONFIGURED_WITHIN
        sleep(0.1) if is_early
      end while is_early
      return misconfigured(status, words) if status != "OK"

      @mutex.synchronize do
        @partitions = Integer(words[3])
        @settings = JSON.parse(words[4])
        @epochs[home] = Epoch.new(words[0], words[1], asked_at + VALID_FOR)
      end
    end

    def family_epoch(home)
      read("family_epoch", fence(home), [@kind, @partitions || "", "", ""])
    rescue NotCounted => error
      raise unless error.temporary?

      raise NotCounted.new("no epoch", error.detail, temporary: true)
    end

    def misconfigured(status, words)
      partitions = @partitions
      @mutex.synchronize { forget }
      raise Misconfigured.new(status, <<~MESSAGE.tr("\n", " ").strip) if status == "UNCONFIGURED"
        #{@name} was never configured in this Redis. Declare it in counterfoil.toml of the daemon (`counterfoil init` creates
        its tables) and start the daemon; check the name and the number of the database.
      MESSAGE

      kind, count, = words
      raise Misconfigured.new(status, "#{@name} is #{kind} with #{count} partitions; " \
        "expected #{[@kind, partitions].compact.join(" with ")}")
    end
  end
end
