class ProductsController < ApplicationController
  counts_views :product_views, only: :show

  rescue_from(Counterfoil::NotCounted) { render json: { error: "not_counted" }, status: :service_unavailable }
  rescue_from(Counterfoil::OutcomeUnknown) { render json: { error: "outcome_unknown" }, status: :internal_server_error }

  def index
    @products = Product.order(:id).to_a
    Product.with_exact_views_count(@products, nil)
    Product.with_exact_saves_count(@products, nil)
    respond_to do |format|
      format.json { render json: @products.map { |product| { id: product.id, views: product.exact_views_count, saves: product.exact_saves_count } } }
      format.html
    end
  end

  def show
    @product = Product.find(params[:id])
  end

  def count
    render json: { counted: count_view(:product_views, params[:id]) }
  end

  def visits
    visitor = -> { request.headers["X-Visitor"] }
    render json: { counted: count_view(:product_visitors, params[:id], repeats: false, visitor: visitor) }
  end
end
