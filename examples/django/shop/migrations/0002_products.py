from django.db import migrations


def insert(apps, schema_editor):
    product = apps.get_model("shop", "Product")
    product.objects.bulk_create(product(id=id, name=f"Product {id}") for id in range(1, 21))


class Migration(migrations.Migration):
    dependencies = [("shop", "0001_initial")]
    operations = [migrations.RunPython(insert, migrations.RunPython.noop)]
