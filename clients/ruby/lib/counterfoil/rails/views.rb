# frozen_string_literal: true

require "openssl"

class Counterfoil
  module Rails
    # Counts views of pages. Prefetches and HEAD do not count.
    #
    #   class ProductsController < ApplicationController
    #     counts_views :product_views, only: :show
    #     counts_views :product_visitors, only: :show, repeats: false, staff: -> { current_user&.staff? }
    #   end
    #
    # No cookie is set. With `repeats: false` the family is one of kind `visitors`, and Redis keeps for some days a keyed hash of
    # the address and the User-Agent, or of what `visitor` returns.
    module Views
      extend ActiveSupport::Concern

      PREFETCH = %w[Sec-Purpose X-Sec-Purpose Purpose X-Purpose X-Moz].freeze
      private_constant :PREFETCH

      # @api private
      def self.load_detector
        require "device_detector"
      rescue LoadError
        raise Misconfigured.new("bots", "add the gem device_detector, which finds crawlers, or write bots: true, which counts them")
      end

      # The macro for controllers.
      module ClassMethods
        # Counts a view after an action that succeeded: after the reply where the server offers it (Puma, Unicorn). An error is logged,
        # and the page does not fail.
        #
        # @param id [Symbol, Proc] the id that is counted
        # @param options those of `count_view`, and those of `after_action`, such as `only`
        def counts_views(family, id: -> { params[:id] }, bots: false, staff: false, repeats: true, visitor: nil, **options)
          Views.load_detector unless bots
          after_action(**options) do
            counters, call, *hit = view_of(family, view_option(id), bots, staff, repeats, visitor) if response.status < 400
            count = lambda do
              counters&.public_send(call, *hit)
            rescue StandardError => error
              Rails.settle(error, counters, *hit)
            end
            request.env["rack.after_reply"]&.push(count) || count.call
          rescue StandardError => error
            Rails.log(error, family)
          end
        end
      end

      private

      # Counts a view of this request.
      #
      # @param bots [Boolean, Symbol, Proc] whether crawlers count; a method or a block that is true for a crawler leaves it out
      # @param staff [Boolean, Symbol, Proc] a method or a block that is true for staff leaves it out
      # @param repeats [Boolean] false counts a visitor once a day (UTC)
      # @param visitor [Symbol, Proc] names the visitor, instead of the address and the User-Agent
      # @return [Boolean] whether it was counted
      # @raise [NotCounted, OutcomeUnknown, Misconfigured]
      def count_view(family, id, bots: false, staff: false, repeats: true, visitor: nil)
        counters, call, *hit = view_of(family, id, bots, staff, repeats, visitor)
        counters ? counters.public_send(call, *hit) != false : false
      end

      # @return [Array, nil] the counters, the method and the arguments that count the view; nil if it is left out
      def view_of(family, id, bots, staff, repeats, visitor)
        return if request.head? || PREFETCH.any? { |name| request.headers[name].to_s.include?("prefetch") }
        return if crawler?(bots) || (staff != true && view_option(staff))
        return [Counterfoil.client.buffered(family), :add, id] if repeats

        [Counterfoil.client.visitors(family), :first_visit, id, Time.now.utc.to_date, visitor_hash(view_option(visitor))]
      end

      def crawler?(bots)
        return bots != true && view_option(bots) if bots

        Views.load_detector
        request.user_agent.blank? || DeviceDetector.new(request.user_agent).bot?
      end

      def visitor_hash(visitor)
        key = ::Rails.application.key_generator.generate_key("counterfoil visitor")
        OpenSSL::HMAC.hexdigest("SHA256", key, visitor&.to_s || "#{request.remote_ip}\n#{request.user_agent}")
      end

      def view_option(option)
        return option.is_a?(Symbol) ? send(option) : option unless option.is_a?(Proc)

        option.arity.zero? ? instance_exec(&option) : instance_exec(request, &option)
      end
    end
  end
end
