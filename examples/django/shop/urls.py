from django.urls import path

from . import views

urlpatterns = [
    path("products", views.products),
    path("products/<int:pk>", views.ProductPage.as_view()),
    path("products/<int:id>/views", views.view),
    path("products/<int:id>/visits", views.visit),
    path("products/<int:id>/saves", views.saves),
    path("saves/<int:id>", views.save),
]
