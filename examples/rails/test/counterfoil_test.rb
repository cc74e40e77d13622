require_relative "../config/environment"
require "counterfoil/testing"
require "minitest/autorun"
require "rails/generators"
require "tmpdir"

ActiveRecord::Schema.verbose = false
ActiveRecord::Schema.define do
  create_table(:test_shelves, force: true) { |t| t.bigint :books_count, null: false, default: 0 }
  create_table(:test_books, force: true) do |t|
    t.bigint :shelf_id
    t.integer :pages
    t.boolean :lent, default: false, null: false
    t.string :type
    t.string :isbn, index: { unique: true }
    t.integer :lock_version, default: 0, null: false
  end
end
Minitest.after_run { %i[test_books test_shelves].each { |table| ActiveRecord::Base.connection.drop_table(table) } }

class Shelf < ApplicationRecord
  self.table_name = "test_shelves"
  has_count :books
end

class Book < ApplicationRecord
  self.table_name = "test_books"
  belongs_to :shelf, optional: true
  after_create { update!(shelf_id: @moved_to) if @moved_to } # before counts
  counts :books, on: :shelf
  counts :lent, on: :shelf, if: :lent?
  counts :pages, on: :shelf, sum: :pages, if: -> { !lent }
  attr_writer :moved_to
end

class Novel < Book; end

class TestClient < Counterfoil::Testing
  attr_accessor :refuse
  attr_reader :calls

  def buffered(family)
    super.tap do |counters|
      @calls ||= []
      calls, client = @calls, self
      counters.define_singleton_method(:add_many) do |pairs|
        calls << pairs.to_h
        client.refuse ? pairs.map { client.refuse } : super(pairs)
      end
      counters.define_singleton_method(:values) { |ids, *default, &block| (calls << ids.size) && super(ids, *default, &block) }
    end
  end
end

class RowsTest < Minitest::Test
  def setup
    Counterfoil.client = @client = TestClient.new("shop")
    Book.delete_all
    @a, @b, @c = Array.new(3) { Shelf.create! }
  end

  def counted(family = "books") = @client.buffered("shelf_#{family}").values([@a, @b, @c].map(&:id))

  def rows(relation = Book.all, &block) = [@a, @b, @c].map { |shelf| block ? block.call(relation.where(shelf: shelf)) : relation.where(shelf: shelf).count }

  # Every counter is what its rows say.
  def assert_counted(*expected)
    assert_equal rows, counted
    assert_equal rows(Book.where(lent: true)), counted("lent")
    assert_equal rows(Book.where(lent: false)) { |books| books.sum(:pages) }, counted("pages")
    assert_equal expected, counted
  end

  def test_rows_are_created_moved_changed_and_destroyed
    book = Book.create!(shelf: @a, pages: 100)
    assert_counted(1, 0, 0)
    book.update!(shelf: @b, pages: 120)
    assert_counted(0, 1, 0)
    book.update!(lent: true)
    assert_equal [0, 1, 0], counted("lent")
    book.update!(lent: false, shelf: @c)
    assert_counted(0, 0, 1)
    book.update!(shelf: nil)
    assert_counted(0, 0, 0)
    book.update!(shelf: @a)
    book.assign_attributes(shelf: @b, pages: 7, lent: true) # and destroyed as the database has it
    book.destroy!
    assert_counted(0, 0, 0)
  end

  def test_saves_in_a_transaction_count_their_net_effect
    Book.transaction do
      book = Book.create!(shelf: @a, pages: 1)
      book.update!(shelf: @b)
      book.update!(shelf: @c, pages: 5)
      Book.find(book.id).update!(shelf: @a, lent: true)
      Book.find(book.id).update!(lent: false)
      book.reload.update!(pages: 9)
      2.times { Book.create!(shelf: @b) }
      Book.create!(shelf: @c).destroy!
      assert_equal [0, 0, 0], counted
    end
    books = @client.calls.grep(Hash).first
    assert_equal({ @a.id.to_s => 1, @b.id.to_s => 2 }, books) # in one call
    assert_counted(1, 2, 0)
  end

  def test_rollbacks
    kept = Book.create!(shelf: @a, pages: 3)
    Book.transaction do
      kept.update!(shelf: @b)
      Book.create!(shelf: @b)
      raise ActiveRecord::Rollback
    end
    assert_counted(1, 0, 0)
    Book.transaction do
      kept.reload.update!(shelf: @b)
      Book.transaction(requires_new: true) do
        Book.find(kept.id).update!(shelf: @c)
        Book.create!(shelf: @c)
        raise ActiveRecord::Rollback
      end
      Book.transaction(requires_new: true) { Book.create!(shelf: @b) }
      Book.transaction { Book.create!(shelf: @a) }
    end
    assert_counted(1, 2, 0)
  end

  def test_callbacks_that_save_again
    Book.create!(shelf: @a, moved_to: @b.id, pages: 4)
    assert_counted(0, 1, 0)
  end

  def test_savepoints_locks_and_subclasses_of_active_record
    novel = Novel.create!(shelf: @a, isbn: "1", pages: 3)
    2.times { Book.create_or_find_by!(isbn: "1") { |book| book.shelf = @b } }
    Novel.find(novel.id).update!(shelf: @b)
    assert_raises(ActiveRecord::StaleObjectError) { novel.update!(shelf: @c) }
    assert_raises(ActiveRecord::StaleObjectError) { novel.destroy! }
    assert_counted(0, 1, 0)
    Shelf.has_many(:books, dependent: :destroy)
    Shelf.find(@b.id).destroy!
    assert_equal [0, 0, 0], counted
  end

  def test_stale_records
    ActiveRecord::Base.lock_optimistically = false
    book = Book.create!(shelf: @a, pages: 8)
    others = Array.new(3) { Book.find(book.id) }
    book.update!(shelf: @b)
    others[0].update!(shelf: @c)
    others[1].update!(pages: 11)
    assert_counted(0, 0, 1)
    others[1].destroy!
    others[2].destroy!
    book.destroy!
    assert_counted(0, 0, 0)
  ensure
    ActiveRecord::Base.lock_optimistically = true
  end

  def test_requests_that_destroy_and_move_the_same_rows
    ActiveRecord::Base.lock_optimistically = false
    ids = Array.new(10) { Book.create!(shelf: @a, pages: 2).id }
    threads = Array.new(4) do |n|
      Thread.new do
        40.times do |i|
          book = Book.find_by(id: ids[(i * 7 + n) % 10]) or next
          n == 3 && i % 5 == 0 ? book.destroy : book.update(shelf: [@a, @b, @c][(i + n) % 3], lent: i.odd?)
        rescue ActiveRecord::Deadlocked
          next
        end
      ensure
        ActiveRecord::Base.connection_pool.release_connection
      end
    end
    threads.each(&:join)
    assert_counted(*rows)
  ensure
    ActiveRecord::Base.lock_optimistically = true
  end

  def test_another_callback_that_raises
    book = Book.create!(shelf: @a)
    book.singleton_class.after_commit { raise "of the application" }
    assert_raises(RuntimeError) { book.update!(shelf: @b) }
    assert_counted(0, 1, 0)
  end

  def test_refused_counts_wait_or_are_logged
    log = StringIO.new
    before, Rails.logger = Rails.logger, Logger.new(log)
    @client.refuse = Counterfoil::NotCounted.new("UNREACHABLE", temporary: true)
    Book.create!(shelf: @a)
    @client.refuse = nil
    @client.flush
    assert_equal [1, 0, 0], counted
    assert_empty log.string
    @client.refuse = Counterfoil::OutcomeUnknown.new("UNREACHABLE")
    Book.create!(shelf: @b)
    assert_includes log.string, "shop/shelf_books #{@b.id} 1: OutcomeUnknown"
  ensure
    Rails.logger = before
  end

  def test_exact_values
    Book.create!(shelf: @a)
    assert_equal 1, @a.exact_books_count
    100.times { Shelf.create! }
    @client.calls.clear
    shelves = Shelf.order(:id).with_exact_books_count
    assert_equal Shelf.count, @client.calls.sum
    assert_equal [1, 0, 0], shelves.select { |shelf| [@a, @b, @c].include?(shelf) }.map(&:exact_books_count)
    assert_equal 1, @client.calls.size
    assert_equal 0, Shelf.new.exact_books_count
    begin
      @a.update(books_count: 7) # readonly: Rails 7.1 raises, 6.1 ignores it
    rescue ActiveRecord::ActiveRecordError
      @a.reload
    end
    assert_equal 0, @a.reload.books_count
    assert_equal 1, Shelf.where(id: @a.id).with_exact_books_count.size
  end

  def test_mistakes
    assert_match(/needs belongs_to :shelf/, assert_raises(ArgumentError) { Class.new(ApplicationRecord) { counts :books, on: :shelf } }.message)
  end
end

class ViewsTest < ActionDispatch::IntegrationTest
  BROWSER = { "User-Agent" => "Mozilla/5.0 (X11; Linux x86_64; rv:120.0) Gecko/20100101 Firefox/120.0" }.freeze

  class PagesController < ActionController::Base
    counts_views :page_views, only: :show, bots: ->(request) { request.user_agent == "bot" }, staff: :staff?
    counts_views :page_visitors, only: :show, repeats: false
    counts_views :page_slugs, only: :show, id: -> { 7 }, bots: true, staff: true
    def show = params[:id] == "0" ? head(:not_found) : head(:ok)
    def staff? = params[:staff]
  end

  setup do
    Counterfoil.client = @client = Counterfoil::Testing.new("shop", families: { "page_views" => { ids: "[0-9]+" } })
    @app = ActionDispatch::Routing::RouteSet.new.tap { |routes| routes.draw { get "pages/:id", to: PagesController.action(:show) } }
    Rails.application.env_config.each { |key, value| (@env ||= {})[key] = value }
  end

  def app = ->(env) { @app.call(@env.merge(env)) }

  def counted(id = 1)
    [@client.buffered("page_views").value(id), @client.visitors("page_visitors").value(id, Time.now.utc.to_date), @client.buffered("page_slugs").value(7)]
  end

  test "views, visitors and what is left out" do
    2.times { get "/pages/1", headers: BROWSER }
    assert_equal [2, 1, 2], counted
    get "/pages/1", headers: BROWSER.merge("REMOTE_ADDR" => "192.0.2.7")
    assert_equal [3, 2, 3], counted
    get "/pages/1", headers: { "User-Agent" => "Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)" }
    assert_equal [4, 2, 4], counted # page_views has a block that knows another crawler
    get "/pages/1", headers: { "User-Agent" => "bot" }
    get "/pages/1?staff=1", headers: BROWSER
    assert_equal [4, 2, 6], counted
    get "/pages/1", headers: BROWSER.merge("Sec-Purpose" => "prefetch;prerender")
    head "/pages/1", headers: BROWSER
    get "/pages/0", headers: BROWSER
    assert_equal [4, 2, 6], counted
    get "/pages/1", headers: { "User-Agent" => "" }
    assert_equal 2, counted[1]
    get "/pages/1", headers: BROWSER, env: { "rack.after_reply" => calls = [] }
    assert_equal 5, counted[0]
    calls.each(&:call)
    assert_equal 6, counted[0]
  end

  test "a page does not fail" do
    get "/pages/x", headers: BROWSER # no id of page_views
    assert_response :ok
  end

  test "the detector is missing" do
    views = Counterfoil::Rails::Views
    views.define_singleton_method(:require) { |_| raise LoadError }
    assert_match(/device_detector/, assert_raises(Counterfoil::Misconfigured) { PagesController.counts_views(:page_views) }.message)
    PagesController.counts_views(:page_others, only: :none, bots: true)
  ensure
    views.singleton_class.remove_method(:require)
  end
end

class JobTest < Minitest::Test
  class SaleJob < ActiveJob::Base
    include Counterfoil::Rails::Job
    counts_once(:sales) { |product_id, _| product_id }
    def perform(_product_id, number) = count_once(number)
  end

  def setup = Counterfoil.client = @client = Counterfoil::Testing.new("shop")

  def test_a_job_that_runs_again_counts_once
    data = SaleJob.new(7, 3).serialize
    assert_equal Counterfoil::Testing::EPOCH, data["counterfoil_epoch"]
    assert_equal [true, false], Array.new(2) { ActiveJob::Base.execute(data) }
    assert_equal data["counterfoil_epoch"], SaleJob.deserialize(data).serialize["counterfoil_epoch"]
    assert_nil ActiveJob::Base.execute(SaleJob.new(7, 3).serialize.merge("counterfoil_epoch" => "0" * 16)) # forgotten
    assert SaleJob.perform_now(7, 1)
    assert_equal 4, @client.buffered("sales").value(7)
  end
end

class GeneratorTest < Minitest::Test
  def test_it_writes_families_and_migrations
    require "generators/counterfoil/count_generator"
    Dir.mktmpdir do |dir|
      said, = capture_io do
        Rails::Generators.invoke("counterfoil:count", %w[save product --filter paid], destination_root: dir)
        Rails::Generators.invoke("counterfoil:count", %w[view product --no-rows], destination_root: dir)
      end
      toml = File.read("#{dir}/counterfoil.toml")
      assert_equal ["shop/product_saves", "shop/product_views"], toml.scan(/^name = "(.*)"/).flatten
      assert_equal 1, toml.scan("[family.recount]").size
      assert_includes toml, %(filter = "paid"\n)
      assert_includes said, "counts :saves, on: :product"
      assert_includes File.read(Dir["#{dir}/db/migrate/*_add_views_count_to_products.rb"].first), "add_column :products, :views_count, :bigint, null: false, default: 0"
    end
  end
end
