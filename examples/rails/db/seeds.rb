(1..20).each { |id| Product.find_or_create_by!(id: id) { |product| product.name = "Product #{id}" } }
