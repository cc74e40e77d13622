class AddSavesCountToProducts < ActiveRecord::Migration[6.1]
  def change
    add_column :products, :saves_count, :bigint, null: false, default: 0
  end
end
