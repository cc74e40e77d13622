# frozen_string_literal: true

require "json"
require "zlib"

class Counterfoil
  # A family of counters: its keys, settings and epochs, and its counting calls.
  class Family
    # A reply of a home: the epoch `now`, the generation of requests, and the family's settings. `until` is when to ask again, and
    # `ids` matches the ids that can have a row.
    Epoch = Struct.new(:now, :generation, :partitions, :settings, :until, :ids) do
      # @return [String] the id, unless it can have no row
      def check(id)
        return id if ids.match?(id)

        raise NotCounted.new("BADID", "#{id.inspect} can have no row, expected #{settings["ids_in_words"]}")
      end
    end
    # A counting call. Its repeats are equal, so Redis recognizes them. Each of the `requests` has the number of its pair, a name, and
    # the generation that a job has stored or nil.
    Call = Struct.new(:script, :home, :keys, :args, :of, :requests, :epoch, :caller, :is_sent, :reply)
    VALID_FOR = 30
    CONFIGURED_WITHIN = 3
    PAUSE = 0.2 # the interval at which the daemon takes the names of wanted families
    WANTED = ["cf1:wanted"].freeze
    ROUNDS = 5
    READ = 0.5 # the share that a read has of the time of a counting call
    NAME = /\A[a-z0-9_.-]{1,64}\z/
    I64 = (-2**63..2**63 - 1)
    private_constant(*constants(false))

    # @return [Connection]
    attr_reader :connection
    # @return [String] `name` is `NAMESPACE/FAMILY`
    attr_reader :namespace, :family, :name

    def initialize(connection, callers, namespace, family, kind)
      raise Misconfigured.new("BADKEY", "#{namespace}/#{family} is not #{NAME.source}") unless [namespace, family].all?(NAME)

      @connection, @callers, @namespace, @family, @kind = connection, callers, namespace, family, kind
      @name = "#{namespace}/#{family}"
      @epochs, @homes, @unconfigured = {}, {}, Outage.new
    end

    # Yields. The counting calls in the block end within `retry_for`.
    def counting(&block) = within(1, &block)

    # Yields. The reads in the block end within half of `retry_for`.
    def reading(&block) = within(READ, &block)

    # @return [Integer] the number of partitions
    def partitions = (@known || ask(0)).partitions

    # @return [Boolean] true if Redis need not be asked for the settings
    def known? = !@known.nil?

    # @return [Hash] as the daemon configured them
    def settings = (@known || ask(0)).settings

    # @return [Integer] the partition of an id among `of`
    def partition(id, of = partitions) = Zlib.crc32(id) % of

    def keys(partition, *names) = names.map { |name| "cf1:{#{@name}/#{partition}}:#{name}" }

    # @return [Integer] the home of a partition: the one that stores the callers and the epoch of its calls
    def home(partition) = @connection.cluster? ? partition : 0

    # @param fresh [Boolean] asks Redis in any case
    # @return [Epoch] for new calls
    def epoch(home, fresh: false)
      known = @epochs[home]
      known && !fresh && Limit.now < known.until ? known : ask(home)
    end

    # @param of [Integer] how many partitions the family had when the keys were chosen
    # @return [Call] a counting call that has not been sent
    def call(script, home, keys, args, of, requests = [])
      keys += home_keys(home).last(2) if requests.any?
      Call.new(script, home, home_keys(home).first(2) + keys, args, of, requests, checked(epoch(home), of), @callers.take, false)
    end

    # Makes a counting call, which is executed once. This may be called again for a call that was interrupted.
    #
    # @return [Array] the reply: `OK` or `DUP`, and what follows, or `MISMATCH` for a call that was not executed, because it was made
    #   for other settings
    def count(call)
      until call.reply
        is_lost, call.is_sent = call.is_sent, true
        tail = call.requests.flat_map { |pair, name, stored| [pair, name, stored || call.epoch.generation] }
        args = [call.caller.name, call.caller.n, call.epoch.now, "", *call.args, *tail]
        reply, only, is_lost = @connection.call(call.script, home_keys(call.home), call.keys, args, is_lost)
        unless expired?(reply, call.home)
          call.reply = reply # before others use the name: if this thread is interrupted now, the call is not sent again
          @callers.give_back(call.caller)
          break
        end
        raise OutcomeUnknown, "EXPIRED" unless only

        call.is_sent = false
        call.epoch = checked(epoch(call.home), call.of)
        @callers.step(call.caller)
      end
      raise OutcomeUnknown.new("MISMATCH", "#{@name} has changed in Redis") if is_lost && call.reply[0] == "MISMATCH"

      call.reply
    end

    # Asks Redis each time, since a job that runs later needs the generation of now.
    #
    # @return [String] the generation of requests
    def request_epoch(partition) = epoch(home(partition), fresh: true).generation

    # Forgets the epoch of a home: Redis has another generation of requests.
    def forget(home) = @epochs = @epochs.except(home)

    # Makes a read that needs the settings at the home of a partition's calls.
    #
    # @return [Array] the reply `OK`
    def read_of_home(script, partition, names, keys, arg)
      reply = nil
      ROUNDS.times do
        reply = read(script, home(partition), keys(home(partition), "calls", *names) + keys, [arg, ""])
        break if reply[0] != "MISMATCH"

        epoch(home(partition), fresh: true)
        sleep(0.1)
      end
      return reply if reply[0] == "OK"

      raise NotCounted.new(reply[0], "#{script} #{arg} of #{@name}", temporary: reply[0] == "NOCALENDAR")
    end

    # Makes a call that only reads, or that may be repeated.
    def read(script, home, keys, args)
      @connection.call(script, home_keys(home), keys, args)[0]
    rescue OutcomeUnknown => error
      is_temporary = Failure.temporary?(error.reason, @connection.cluster?)
      outcome = Failure.outcome(error.reason, error.detail, false, is_temporary)
      outcome = Misconfigured.new(error.reason, error.detail) if outcome.is_a?(OutcomeUnknown)
      raise outcome, cause: error.cause
    end

    # @return [String] the id as UTF-8
    def text(id, max = 255)
      id = string(id)
      return id if id.encoding == Encoding::UTF_8 && id.valid_encoding? && id.bytesize.between?(1, max)

      id = id.encoding == Encoding::BINARY ? id.dup.force_encoding("UTF-8") : id.encode("UTF-8") if id.encoding != Encoding::UTF_8
      return id if id.valid_encoding? && id.bytesize.between?(1, max)

      raise NotCounted.new("BADID", "expected 1 to #{max} bytes of UTF-8")
    rescue EncodingError => error
      raise NotCounted.new("BADID", error.message)
    end

    # @return [String] an id, a name or a page that can have a row, as UTF-8
    def id(id, max = 255) = (@known || ask(0)).check(text(id, max))

    # @return [String] the same, as far as it is known without asking Redis
    def id_if_known(id, max = 255) = @known ? @known.check(text(id, max)) : text(id, max)

    # @return [String] a visitor, 1 to 255 bytes of any kind
    def bytes(visitor)
      visitor = string(visitor)
      return visitor if visitor.bytesize.between?(1, 255)

      raise NotCounted.new("BADID", "expected 1 to 255 bytes")
    end

    # @return [Integer] the number, of 64 bits
    def integer(number, least = I64.begin)
      return number if number.is_a?(Integer) && I64.include?(number) && number >= least

      raise NotCounted.new("BADARG", "#{number.inspect} is not an integer of 64 bits from #{least} on")
    end

    # @param why [String] what else is known
    # @return [NotCounted]
    def unconfigured(why)
      text = "no daemon has configured #{@name}: declare it in counterfoil.toml, and run the daemon#{why}"
      NotCounted.new("UNCONFIGURED", text, temporary: true)
    end

    private

    def within(share, &block)
      @connection.check_open
      Limit.within(@connection.retry_for * share, &block)
    end

    # @return [Array<String>] the keys of `family_epoch`
    def home_keys(home) = @homes[home] ||= keys(home, "calls", "calls_before", "requests", "requests_before").freeze

    # refuses other objects, such as a record of Active Record in place of its id
    def string(identifier)
      case identifier
      when String then identifier
      when Symbol, Integer then identifier.to_s
      else raise NotCounted.new("BADID", "#{identifier.inspect} is not a String, Symbol or Integer")
      end
    end

    # Refuses a call for another number of partitions: the reconciler may not drain the one that was chosen.
    def checked(known, of)
      return known if known.partitions == of

      raise Misconfigured.new("MISMATCH", "#{@name} has #{known.partitions} partitions now, not #{of}")
    end

    def expired?(reply, home)
      raise OutcomeUnknown.new("PASSED", "another process uses this caller's name") if reply[0] == "PASSED"

      reply[0] == "EXPIRED" && forget(home)
    end

    def ask(home)
      @unconfigured.check
      limit = [Limit.now + CONFIGURED_WITHIN, Limit.at].compact.min
      loop do
        asked_at, (status, *words) = Limit.now, family_epoch(home)
        return know(home, words, asked_at + VALID_FOR) if status == "OK"
        raise mismatch(*words) if status == "MISMATCH"
        raise Misconfigured.new("UNCONFIGURED", "the daemon refuses #{@name}: #{words[0]}") unless words[0].to_s.empty?

        why = announce(home)
        Limit.now + PAUSE < limit ? sleep(PAUSE) : give_up(unconfigured(why))
      end
    end

    def give_up(error)
      @unconfigured.start(error.reason, error.detail)
      raise error
    end

    def family_epoch(home)
      read("family_epoch", home, home_keys(home), [@kind, @known ? @known.partitions : "", "", ""])
    end

    def know(home, (now, generation, _kind, partitions, description), valid_until)
      @unconfigured.stop
      settings = JSON.parse(description)
      known = Epoch.new(now, generation, Integer(partitions), settings, valid_until, /\A(?:#{settings["ids"]})\z/)
      @epochs = @epochs.merge(home => known)
      @known = known
    end

    # Announces the family to the daemon, whose configuration may have a pattern for it.
    #
    # @return [String] why that failed, or ""
    def announce(home)
      read("family_want", home, WANTED, [@name])[0] == "OK" ? "" : "; #{WANTED[0]} is full, since no daemon takes names"
    rescue Error => error
      "; the daemon was not asked for it: #{error.message}"
    end

    def mismatch(kind, partitions, *)
      @unconfigured.stop
      before = @known&.partitions
      @epochs, @known = {}, nil
      is_other = kind == @kind ? "has #{partitions} partitions, not #{before}" : "is #{kind}, not #{@kind}"
      Misconfigured.new("MISMATCH", "#{@name} #{is_other}")
    end
  end
end
