class Save < ApplicationRecord
  belongs_to :product
  counts :saves, on: :product
end
