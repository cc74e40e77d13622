class CreateProducts < ActiveRecord::Migration[6.1]
  def change
    create_table :products do |t|
      t.string :name, null: false
    end
    create_table :saves do |t|
      t.references :product, null: false
      t.bigint :user_id, null: false
    end
    create_table :product_visitors, primary_key: %i[product_id day] do |t|
      t.bigint :product_id
      t.date :day
      t.bigint :visitors, null: false, default: 0
    end
  end
end
