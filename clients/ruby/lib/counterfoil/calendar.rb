# frozen_string_literal: true

require "date"

class Counterfoil
  # Slices of time: `60s` in Unix time, `day` and `month` in a time zone.
  class Calendar
    # @param zone [String] the name of an IANA time zone; other ones than UTC need the gem tzinfo
    def initialize(zone)
      @zone = zone == "UTC" ? nil : load(zone)
    end

    # @return [Range<Integer>] the slice that contains the time, in Unix seconds, without its end
    def slice(label, at)
      if label.end_with?("s")
        length = label.to_i
        return (at / length * length...(at / length + 1) * length)
      end

      first = date(at)
      first -= first.day - 1 if label == "month"
      (start(first)...start(label == "month" ? first >> 1 : first + 1))
    end

    # @return [Date] the date at this time
    def date(at) = (@zone ? @zone.to_local(Time.at(at).utc) : Time.at(at).utc).then { |time| Date.new(time.year, time.month, time.day) }

    private

    def load(zone)
      require "tzinfo"
      TZInfo::Timezone.get(zone)
    rescue LoadError
      raise Misconfigured.new("time zone", "days and months of #{zone} need the gem tzinfo")
    rescue TZInfo::InvalidTimezoneIdentifier, TZInfo::DataSourceNotFound => error
      raise Misconfigured.new("time zone", error.message)
    end

    # the first moment of the date
    def start(date)
      midnight = Time.utc(date.year, date.month, date.day)
      return midnight.to_i unless @zone

      @zone.local_to_utc(midnight, &:first).to_i
    rescue TZInfo::PeriodNotFound # the clocks skip midnight
      @zone.transitions_up_to(midnight + 86_400, midnight - 86_400).first.at.to_i
    end
  end
end
