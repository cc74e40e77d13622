class SavesController < ApplicationController
  def create
    save = Save.create!(product_id: params[:product_id], user_id: params[:user_id])
    render json: { id: save.id }, status: :created
  end

  def update
    Save.find(params[:id]).update!(product_id: params[:product_id])
    head :ok
  end

  def destroy
    Save.find(params[:id]).destroy!
    head :no_content
  end
end
