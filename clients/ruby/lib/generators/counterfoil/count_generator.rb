# frozen_string_literal: true

require "rails/generators/active_record"

class Counterfoil
  module Generators
    # Writes the family of a counter and its recount into counterfoil.toml, and a migration for its column.
    class CountGenerator < ::Rails::Generators::Base
      include ActiveRecord::Generators::Migration

      source_root __dir__
      desc "Counts rows in a column of their parent (save product), or hits such as views (view product --no-rows)."
      argument :row
      argument :parent
      class_option :rows, type: :boolean, default: true, desc: "Count the rows of a model"
      class_option :key, default: "signed", desc: "Type of the parent's id: signed, unsigned, uuid, char or text"
      class_option :sum, desc: "Column of the rows that is summed"
      class_option :filter, desc: "Condition of the rows in SQL, as if: has it in Ruby"

      def write_family
        create_file("counterfoil.toml", pair) unless File.exist?(File.join(destination_root, "counterfoil.toml"))
        append_to_file("counterfoil.toml", options[:rows] ? family + recount : family)
      end

      def write_migration = migration_template("migration.tt", File.join(db_migrate_path, "add_#{column}_to_#{table(parent)}.rb"))

      def show_lines
        say("Add to #{parent.camelize}:  has_count :#{row.pluralize}")
        say("Add to #{row.camelize}, below belongs_to:  counts :#{row.pluralize}, on: :#{prefix}") if options[:rows]
      end

      private

      def column = "#{row.underscore.tr("/", "_").pluralize}_count"
      def prefix = parent.underscore.tr("/", "_")
      def table(model) = model.tableize.tr("/", "_")

      def pair
        database = { username: "root", host: "localhost" }.merge(ActiveRecord::Base.connection_db_config.configuration_hash)
        <<~TOML
          # counterfoil --config counterfoil.toml run
          [pair.main]
          redis = "redis://127.0.0.1"
          # the password is in the environment, as COUNTERFOIL_MAIN_MYSQL_PASSWORD
          mysql = "mysql://#{database[:username]}@#{database[:host]}#{":#{database[:port]}" if database[:port]}/#{database[:database]}"
          create_tables = true
        TOML
      end

      def family
        <<~TOML

          [[family]]
          name = "#{Rails.settings(::Rails.application)[:namespace]}/#{prefix}_#{column.delete_suffix("_count")}"
          kind = "buffered"
          table = { name = "#{table(parent)}", write = "update-or-drop", keys = [["id", "#{options[:key]}"]], value = "#{column}" }
        TOML
      end

      def recount
        <<~TOML + options.slice("sum", "filter").map { |key, value| "#{key} = #{value.to_json}\n" }.join

          [family.recount]
          table = "#{table(row)}"
          keys = ["#{prefix}_id"]
          rows = "added_and_deleted"
          within = "30s"
          every = "6h"
        TOML
      end
    end
  end
end
