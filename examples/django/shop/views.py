import json

from django.http import HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, render
from django.views.decorators.http import require_http_methods, require_POST
from django.views.generic import DetailView

from counterfoil import NotCounted, OutcomeUnknown
from counterfoil.django import CountsViews, count_view, with_exact_values

from .models import Product, Save


def products(request):
    columns = "views_count", "saves_count"
    if "text/html" in request.headers.get("Accept", ""):
        return render(request, "products.html", {"products": Product.objects.order_by("id")})
    rows = with_exact_values(Product.objects.order_by("id"), *columns, default=None)
    return JsonResponse([{"id": row.id, "views": row.views_count, "saves": row.saves_count} for row in rows], safe=False)


class ProductPage(CountsViews, DetailView):
    model = Product
    template_name = "product.html"
    views_family = "product_views"


@require_POST
def view(request, id):
    return counted(request, "product_views", id)


@require_POST
def visit(request, id):
    return counted(request, "product_visitors", id, repeats=False, visitor=lambda request: request.headers["X-Visitor"])


def counted(request, family, id, **options):
    try:
        return JsonResponse({"counted": count_view(request, family, id, **options)})
    except NotCounted:
        return JsonResponse({"error": "not_counted"}, status=503)
    except OutcomeUnknown:
        return JsonResponse({"error": "outcome_unknown"}, status=500)


@require_POST
def saves(request, id):
    save = Save.objects.create(product_id=id, user_id=json.loads(request.body)["user_id"])
    return JsonResponse({"id": save.id}, status=201)


@require_http_methods(["PUT", "DELETE"])
def save(request, id):
    save = get_object_or_404(Save, id=id)
    if request.method == "DELETE":
        save.delete()
        return HttpResponse(status=204)
    save.product_id = json.loads(request.body)["product_id"]
    save.save()
    return JsonResponse({"id": save.id})
