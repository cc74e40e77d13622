# frozen_string_literal: true

require "counterfoil"

class Counterfoil
  # A client for tests of an application, without Redis, daemon and MySQL: the same calls, results and errors, in memory. It does not
  # test the protocol, and nothing fails. Requests are remembered for ever, and there is no `late`, no `max_pending`, and no row.
  # The slices of series follow this process's clock (days and months in UTC), and activity is that of the last five minutes.
  #
  #   counterfoil = Counterfoil::Testing.new("shop", families: { "votes" => { min: 0, max: 10 } })
  #   counterfoil.cached("votes").incr("item-1") #=> 1
  class Testing < Counterfoil
    # The epoch that {Buffered#request_epoch} returns.
    EPOCH = "testing"

    # @param families [Hash] for a family that differs from the others `ids` (a regular expression), `separator`, `min`, `max`, and
    #   `windows` (labels). Others may be used without it; their kind is that of their first use.
    # @param on_error (see Counterfoil#initialize)
    def initialize(namespace, families: {}, on_error: nil)
      memory = Memory.new(families.to_h { |name, settings| ["#{namespace}/#{name}", settings] })
      serve(memory, memory, namespace, 0.001, on_error)
    end

    # Executes the calls of scripts, and replies as they do. All families have one partition.
    class Memory
      include Closable

      SETTINGS = { ids: '[\s\S]{1,255}', ids_in_words: "1 to 255 bytes of UTF-8", separator: "/", windows: %w[60s day month],
                   min: 1 - 2**53, max: 2**53 - 1 }.freeze
      I64 = (-2**63..2**63 - 1)
      SLICES = 120 # in a window
      ACTIVE = 300 # seconds
      READS = %w[family_epoch series_get activity_now cached_get].freeze
      Family = Struct.new(:settings, :kind, :counts, :requests, :slices, :touches, :seen)
      private_constant(*constants(false))

      def initialize(settings)
        @mutex = Lock.new
        @families = Hash.new do |families, name|
          slices = Hash.new { |hash, key| hash[key] = Hash.new(0) }
          touches, seen = Array.new(2) { Hash.new { |hash, key| hash[key] = [] } }
          families[name] = Family.new(SETTINGS.merge(settings.fetch(name, {})), nil, Hash.new(0), {}, slices, touches, seen)
        end
      end

      def retry_for = 1
      def cluster? = false
      def none? = false
      def end_at(_time) = nil

      # replaces Connection#call
      def call(script, _home, keys, args, *)
        reply = @mutex.synchronize do
          family = @families[keys[0][%r{\{(.+)/\d+\}}, 1]]
          READS.include?(script) ? send(script, family, keys, *args) : count(script, family, args)
        end
        [reply, true, false]
      end

      # replaces Daemons#values
      def values(family, ids) = @mutex.synchronize { ids.map { |id| @families[family.name].counts[id] } }

      private

      def count(script, family, (_caller, _n, _epoch, _now, *args)) = ["OK", *send(script, family, args)]

      def family_epoch(family, _keys, kind, *)
        family.kind ||= kind
        return ["MISMATCH", family.kind, 1, ""] if family.kind != kind

        described = family.settings.slice(:ids, :ids_in_words, :separator)
        ["OK", EPOCH, EPOCH, kind, "1", JSON.generate({ wide: false, stripes: 1, labels: family.settings[:windows], **described })]
      end

      def buffered_add(family, (requests, _hits, size, *rest))
        [0, *pairs(family, requests, size, rest) { |sum| I64.cover?(sum) ? sum : "RANGE" }]
      end

      def cached_incr(family, (requests, size, *rest))
        bounds = family.settings[:min]..family.settings[:max]
        pairs(family, requests, size, rest) { |value, before| bounds.cover?(value) ? value : "RANGE:#{before}" }
      end

      # Yields the value that each change would lead to, and the value before. The block returns the word of the reply.
      def pairs(family, requests, size, rest)
        pairs = rest.shift(2 * size).each_slice(2)
        named = rest.each_slice(3).to_h { |number, *request| [number, request] } if requests > 0
        pairs.each.with_index(1).map do |(id, change), number|
          request, epoch = named && named[number]
          known = family.requests[[request, id]] if request
          next known || "EXPIRED" if known || (request && epoch != EPOCH)

          before = family.counts[id]
          word = yield(change.is_a?(String) ? Integer(change.delete_prefix("=")) : before + change, before)
          family.counts[id] = word if word.is_a?(Integer)
          family.requests[[request, id]] = "BEFORE:#{word}" if request
          word
        end
      end

      def cached_get(family, _keys, _tickets, _now, _salt, _database, id) = ["OK", family.counts[id]]

      def series_add(family, triples)
        words = triples.each_slice(3).map do |name, n, at|
          at = at == "" ? Time.now : Time.at(at / 1000r)
          slices = family.settings[:windows].to_h { |label| [label, starts(label).select { |start| start <= at.to_i }.last] }
          next "BADTIME" if at > Time.now + 60 || slices.values.none?

          slices.compact.each { |label, start| family.slices[[label, name]][start] += n }
          1
        end
        [0, *words]
      end

      def series_get(family, keys, label, _now)
        slices = family.slices[[label, name_in(keys)]]
        ["OK", starts(label).join(" "), starts(label).map { |start| slices[start] }.join(" ")]
      end

      # @return [String] the name or page behind series:LABEL or visitors:STRIPE in the last key
      def name_in(keys) = keys.last.split(":", 5).last

      # @return [Array<Integer>] of the slices of a window, by UTC
      def starts(label)
        now = Time.now.utc
        (1 - SLICES..0).map do |offset|
          next (now.to_i / seconds(label) + offset) * seconds(label) if label != "month"

          month = (now.year * 12) + now.month - 1 + offset
          Time.utc(month / 12, (month % 12) + 1).to_i
        end
      end

      def seconds(label) = label == "day" ? 86_400 : Integer(label.delete_suffix("s"))

      def activity_touch(family, (_stripes, places, *rest))
        words = Array.new(places) do
          page, views, visitors = rest.shift(3)
          family.touches[page] << [Time.now, views, rest.shift(visitors)]
          1
        end
        [0, *words]
      end

      def activity_now(family, keys, *)
        touches = family.touches[name_in(keys)].select { |at,| at > Time.now - ACTIVE }
        ["OK", touches.sum { |_, views,| views }, touches.flat_map(&:last).uniq.size]
      end

      def visitors_first(family, (ids, *rest))
        words = Array.new(ids) do
          id, size = rest.shift(2)
          rest.shift(size).map { |visitor| first_visit(family, id, visitor) }
        end
        [0, *words.flatten]
      end

      def first_visit(family, id, visitor)
        return 0 if family.seen[id].include?(visitor)

        family.seen[id] << visitor
        family.counts[id] += 1
        1
      end
    end
    private_constant :Memory
  end
end
