from django.db import models

from counterfoil.django import CounterField, Counts


class Product(models.Model):
    name = models.CharField(max_length=100)
    views_count = CounterField("product_views")
    saves_count = CounterField("product_saves")

    class Meta:
        db_table = "products"


class Save(models.Model):
    product = models.ForeignKey(Product, on_delete=models.CASCADE)
    user_id = models.BigIntegerField()
    counted = Counts("product", "saves_count")

    class Meta:
        db_table = "saves"


class ProductDay(models.Model):
    product = models.ForeignKey(Product, on_delete=models.CASCADE)
    day = models.DateField()
    visitors = CounterField("product_visitors", kind="visitors", keys=["product", "day"])

    class Meta:
        db_table = "product_visitors"
        constraints = [models.UniqueConstraint(fields=["product", "day"], name="product_day")]
