class Product < ApplicationRecord
  has_many :saves, class_name: "Save"
  has_count :saves
  has_count :views
end
