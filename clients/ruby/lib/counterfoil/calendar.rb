# frozen_string_literal: true

require "date"

class Counterfoil
  # Days and months of a time zone, and slices of a fixed length, e.g. `60s`.
  class Calendar
    # @param zone [String] the name of an IANA time zone; other ones than UTC need the gem tzinfo
    def initialize(zone)
      return if zone == "UTC"

      require "tzinfo"
      @zone = TZInfo::Timezone.get(zone)
    rescue LoadError
      raise Misconfigured.new("time zone", "days and months of #{zone} need the gem tzinfo")
    rescue TZInfo::InvalidTimezoneIdentifier, TZInfo::DataSourceNotFound => error
      raise Misconfigured.new("time zone", error.message)
    end

    # @return [Range<Integer>] the slice that contains the time, in Unix seconds, without its end
    def slice(label, at)
      length = label.to_i
      return (at - (at % length)...at - (at % length) + length) if length > 0

      first = date(at)
      first -= first.day - 1 if label == "month"
      (start(first)...start(label == "month" ? first >> 1 : first + 1))
    end

    # @return [Date] the date at this time
    def date(at)
      time = Time.at(at).utc
      (@zone ? @zone.to_local(time) : time).to_date
    end

    private

    # the first moment of the date
    def start(date)
      midnight = Time.utc(date.year, date.month, date.day)
      @zone ? @zone.local_to_utc(midnight, &:first).to_i : midnight.to_i
    rescue TZInfo::PeriodNotFound # the clocks skip midnight
      @zone.transitions_up_to(midnight + 86_400, midnight - 86_400).first.at.to_i
    end
  end
end
