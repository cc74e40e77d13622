# frozen_string_literal: true

class Counterfoil
  module Rails
    # Counts once in a job, however often it runs.
    #
    #   class SaleJob < ApplicationJob
    #     include Counterfoil::Rails::Job
    #     counts_once(:product_sales) { |order| order.product_id } # the id, from the arguments of perform
    #
    #     def perform(order) = count_once(order.quantity)
    #   end
    #
    # The request has the name `job_id`, and the job stores its epoch when it is enqueued. Give the family a `remember_requests` as
    # long as the queue retries.
    module Job
      extend ActiveSupport::Concern

      # The macro for jobs.
      module ClassMethods
        def counts_once(family, &id) = define_method(:counterfoil_hit) { [Counterfoil.client.buffered(family), id.call(*arguments)] }
      end

      # @return [Boolean, nil] true if it was counted now, false if before; nil if Redis may have forgotten the request, which is logged
      # @raise [NotCounted, OutcomeUnknown, Misconfigured] run the job again
      def count_once(delta = 1)
        counters, id = counterfoil_hit
        counters.add_once(job_id, id, delta, epoch: @counterfoil_epoch)
      rescue OutcomeUnknown => error
        raise unless error.reason == "EXPIRED"

        Rails.log(error, counters.name, id, delta)
      end

      # @api private
      def serialize = super.merge("counterfoil_epoch" => @counterfoil_epoch ||= counterfoil_epoch)

      # @api private
      def deserialize(data)
        super
        @counterfoil_epoch = data["counterfoil_epoch"]
      end

      private

      # nil if Redis is unreachable: the job is enqueued all the same, and uses the epoch of its first run
      def counterfoil_epoch
        counters, id = counterfoil_hit
        counters.request_epoch(job_id, id)
      rescue Error => error
        Rails.log(error, counters.name, id)
        nil
      end
    end
  end
end
