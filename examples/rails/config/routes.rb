Rails.application.routes.draw do
  resources :products, only: %i[index show] do
    member do
      post :views, action: :count
      post :visits
    end
    resources :saves, only: :create
  end
  resources :saves, only: %i[update destroy]
end
