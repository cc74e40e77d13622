"""counterfoil.django, with SQLite and counters in memory. The sample in examples/django runs with real servers."""

import asyncio
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import django
from django.conf import settings

settings.configure(
    SECRET_KEY="of a test",
    ALLOWED_HOSTS=["testserver"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    INSTALLED_APPS=["counterfoil.django"],
    ROOT_URLCONF=__name__,
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    TEMPLATES=[{"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True}],
    COUNTERFOIL={"REDIS": "memory", "NAMESPACE": "shop"},
)
django.setup()

from django.core import checks  # noqa: E402
from django.core.management import call_command  # noqa: E402
from django.db import connection, models, transaction  # noqa: E402
from django.http import Http404, HttpResponse  # noqa: E402
from django.template import Context, Template, engines  # noqa: E402
from django.template.response import TemplateResponse  # noqa: E402
from django.test import AsyncClient, Client, RequestFactory, TestCase, TransactionTestCase  # noqa: E402
from django.urls import path  # noqa: E402
from django.views.generic import DetailView  # noqa: E402

from counterfoil import Misconfigured, NotCounted, OutcomeUnknown  # noqa: E402
from counterfoil.django import (  # noqa: E402
    CounterField,
    Counts,
    CountsViews,
    _checks,
    client,
    count_view,
    counts_views,
    with_exact_values,
)

BROWSER = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/126.0.0.0 Safari/537.36"


class Product(models.Model):
    slug = models.CharField(max_length=20, default="")
    views_count = CounterField("views")
    saves_count = CounterField("saves")
    points = CounterField("points")

    class Meta:
        app_label = "counterfoil"


class Row(models.Model):
    product = models.ForeignKey(Product, on_delete=models.CASCADE, null=True)
    note = models.CharField(max_length=20, default="")

    class Meta:
        app_label = "counterfoil"
        abstract = True


class Save(Row):
    hidden = models.BooleanField(default=False)
    counted = Counts("product", "saves_count", where={"hidden": False})

    class Meta:
        app_label = "counterfoil"


class ProxySave(Save):
    class Meta:
        app_label = "counterfoil"
        proxy = True


class Vote(Row):
    points = models.IntegerField(default=0)
    counted = Counts("product", "points", sum="points")

    class Meta:
        app_label = "counterfoil"


class Day(models.Model):
    product = models.ForeignKey(Product, on_delete=models.CASCADE)
    day = models.DateField()
    visitors = CounterField("visitors", kind="visitors", keys=["product", "day"])

    class Meta:
        app_label = "counterfoil"
        unique_together = [("product", "day")]


class Page(CountsViews, DetailView):
    model = Product
    slug_field = "slug"
    views_family = "views"

    def render_to_response(self, context, **_):
        return TemplateResponse(self.request, engines["django"].from_string("{{ product.pk }}{{ fails.now }}"), context)


@counts_views("views")
def page(request, pk):
    if pk == 404:
        raise Http404
    return HttpResponse(status=500 if pk == 500 else 200)


@counts_views("views")
async def async_page(request, pk):
    return HttpResponse()


urlpatterns = [path("page/<int:pk>", page), path("async/<int:pk>", async_page), path("slug/<slug:slug>", Page.as_view())]
TABLES = Product, Save, Vote, Day
with connection.schema_editor() as editor:
    for table in TABLES:
        editor.create_model(table)


class Case(TransactionTestCase):
    available_apps = None

    def _fixture_teardown(self):
        for table in reversed(TABLES):
            table.objects.all().delete()

    def setUp(self):
        client.cache_clear()
        self.one, self.two = Product.objects.create(slug="one"), Product.objects.create(slug="two")

    def values(self, family="saves"):
        return client().buffered(family).values([self.one.pk, self.two.pk])


class Rows(Case):
    def test_created_moved_hidden_deleted(self):
        save = Save.objects.create(product=self.one)
        Save(product=None).save()
        self.assertEqual(self.values(), [1, 0])
        save.product = self.two
        save.save()
        self.assertEqual(self.values(), [0, 1])
        save.hidden = True
        save.save(update_fields=["note"])
        self.assertEqual(self.values(), [0, 1])
        save.save(update_fields=["hidden"])
        self.assertEqual(self.values(), [0, 0])
        save.hidden = False
        save.product_id = str(self.one.pk)
        save.save()
        self.assertEqual(self.values(), [1, 0])
        Save.objects.filter(pk=save.pk).delete()
        self.assertEqual(self.values(), [0, 0])

    def test_objects_that_were_read_before(self):
        first = Save.objects.create(product=self.one)
        second = ProxySave.objects.defer("note").get(pk=first.pk)
        for save in first, second:
            save.product = self.two
            save.save()
        self.assertEqual(self.values(), [0, 1])
        first.delete()
        second.delete()
        self.assertEqual(self.values(), [0, 0])

    def test_sums(self):
        vote = Vote.objects.create(product=self.one, points=3)
        vote.points = -2
        vote.save()
        self.assertEqual(self.values("points"), [-2, 0])
        vote.points = models.F("points") + 1
        with self.assertRaises(Exception):
            vote.save()
        self.assertEqual(Vote.objects.get().points, -2)

    def test_a_transaction_counts_its_net_effect(self):
        added = []
        with mock.patch("counterfoil.django._rows.count_or_log", lambda counters, *hit: added.append((counters.name, *hit))):
            with transaction.atomic():
                saves = [Save.objects.create(product=self.one) for _ in range(3)]
                saves[0].delete()
                saves[1].product = self.two
                saves[1].save()
                saves[1].delete()
                self.assertEqual(added, [])
        self.assertEqual(added, [("shop/saves", str(self.one.pk), 1)])

    def test_rollbacks(self):
        with self.assertRaises(KeyError), transaction.atomic():
            Save.objects.create(product=self.one)
            raise KeyError
        with transaction.atomic():
            Save.objects.create(product=self.one)
            with self.assertRaises(KeyError), transaction.atomic():
                Save.objects.create(product=self.one)
                raise KeyError
            with transaction.atomic():
                Save.objects.create(product=self.two)
        self.assertEqual(self.values(), [1, 1])

    def test_captured_callbacks(self):
        with self.assertRaises(KeyError), transaction.atomic():  # as a TestCase does
            with TestCase.captureOnCommitCallbacks(execute=True):
                Save.objects.create(product=self.one)
            self.assertEqual(self.values(), [1, 0])
            raise KeyError

    def test_errors_after_the_commit(self):
        for error, log in (
            (NotCounted("LOST", temporary=True), None),
            (NotCounted("FULL"), "shop/saves"),
            (OutcomeUnknown("LOST"), "OutcomeUnknown"),
            (ValueError("a defect"), "a defect"),
        ):
            with mock.patch("counterfoil.Buffered.add", side_effect=error), mock.patch("counterfoil.Buffered.later") as later:
                if log:
                    with self.assertLogs("counterfoil") as logs:
                        Save.objects.create(product=self.one)
                    self.assertIn(log, logs.output[0])
                    self.assertNotIn("\n", logs.output[0])
                else:
                    Save.objects.create(product=self.one)
                    later.assert_called_once_with(str(self.one.pk), 1)

    def test_save_does_not_write_the_column(self):
        Product.objects.filter(pk=self.one.pk).update(saves_count=7)
        self.one.slug = "other"
        self.one.save()
        self.assertEqual(Product.objects.get(pk=self.one.pk).saves_count, 7)
        self.assertEqual(Product.objects.create(saves_count=5).saves_count, 5)


class Values(Case):
    def test_exact_values_of_rows(self):
        client().buffered("views").add(self.two.pk, 4)
        client().visitors("visitors").first_visit(self.one.pk, "2026-11-29", "v")
        products = Product.objects.order_by("pk")
        template = Template(
            '{% load counterfoil %}{% exact_values products "views_count" "saves_count" %}'
            '{% for p in products %}{{ p.views_count }},{% endfor %}{% exact_value two "views_count" %}'
        )
        self.assertEqual(template.render(Context({"products": products, "two": self.two})), "0,4,4")
        day = Day(product=self.one, day="2026-11-29")
        self.assertEqual(with_exact_values([day], "visitors")[0].visitors, 1)
        self.assertEqual(with_exact_values([], "visitors"), [])

    def test_defaults(self):
        Product.objects.update(views_count=9)
        down = mock.Mock(side_effect=NotCounted("DAEMON", temporary=True))
        with mock.patch.object(client().daemons, "values", down):
            self.assertEqual([p.views_count for p in with_exact_values(Product.objects.all(), "views_count")], [9, 9])
            rows = with_exact_values(Product.objects.all(), "views_count", default=None)
            self.assertEqual([p.views_count for p in rows], [None, None])
        self.assertEqual(down.call_count, 2)


class Views(Case):
    def get(self, url, agent=BROWSER, **headers):
        return Client(raise_request_exception=False).get(url, headers={"User-Agent": agent, **headers})

    def test_pages(self):
        id = self.one.pk
        for _ in range(2):
            self.assertEqual(self.get(f"/page/{id}").status_code, 200)
        self.get("/slug/one")
        asyncio.run(AsyncClient().get(f"/async/{id}", headers={"User-Agent": BROWSER}))
        self.assertEqual(self.values("views"), [4, 0])
        self.get(f"/page/{id}", agent="Googlebot/2.1")
        self.get(f"/page/{id}", agent="")
        self.get(f"/page/{id}", **{"Sec-Purpose": "prefetch;prerender"})
        Client().head(f"/page/{id}", headers={"User-Agent": BROWSER})
        self.assertEqual([self.get(f"/page/{code}").status_code for code in (404, 500)], [404, 500])
        self.assertEqual(client().buffered("views").values([id, 404, 500]), [4, 0, 0])

    def test_an_error_breaks_no_page(self):
        with mock.patch("counterfoil.Buffered.add", side_effect=Misconfigured("MISMATCH")):
            with self.assertLogs("counterfoil"):
                self.assertEqual(self.get(f"/page/{self.one.pk}").status_code, 200)
        with mock.patch("counterfoil._views.is_view", side_effect=ValueError), self.assertLogs("counterfoil"):
            self.assertEqual(self.get(f"/page/{self.one.pk}").status_code, 200)

    def test_options(self):
        def request(**meta):
            return RequestFactory().post("/", **{"HTTP_USER_AGENT": BROWSER, **meta})

        staff, id = request(), self.one.pk
        staff.user = mock.Mock(is_staff=True)
        self.assertEqual([count_view(staff, "views", id), count_view(staff, "views", id, staff=True)], [False, True])
        self.assertTrue(count_view(request(HTTP_USER_AGENT="Googlebot"), "views", id, bots=True))
        once = {"repeats": False}
        visits = [request(), request(), request(REMOTE_ADDR="::1"), request(HTTP_USER_AGENT=f"{BROWSER} x")]
        self.assertEqual([count_view(visit, "visitors", id, **once) for visit in visits], [True, False, True, True])
        self.assertTrue(count_view(request(), "visitors", id, visitor=lambda request: 7, **once))
        self.assertFalse(count_view(request(), "visitors", id, visitor=lambda request: None, **once))
        with self.assertRaises(Misconfigured):
            count_view(request(REMOTE_ADDR=""), "visitors", id, **once)

    def test_without_a_detector(self):
        with mock.patch.dict(sys.modules, {"crawleruseragents": None}):
            from counterfoil import _views

            _views.is_crawler.cache_clear()
            with self.assertRaisesRegex(Misconfigured, "pip install"):
                counts_views("views")
            with self.assertRaisesRegex(Misconfigured, "pip install"):
                Page.as_view()
            counts_views("views", bots=True)


class Declarations(Case):
    def test_toml(self):
        with mock.patch("sys.stdout") as out:
            call_command("counterfoil_toml", "shop/saves", "shop/points", "shop/visitors", stdout=out)
        text = "".join(call.args[0] for call in out.write.call_args_list)
        self.assertIn("filter = \"`hidden` = 0\"", text)
        self.assertIn('sum = "points"', text)
        self.assertIn('keys = [["product_id", "unsigned"], ["day", "date"]]', text)
        self.assertNotIn("[pair.main]", text)

    def test_the_file(self):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "counterfoil.toml")
            with self.settings(COUNTERFOIL={"REDIS": "memory", "NAMESPACE": "shop", "TOML": file}):
                found = _checks.check_toml()
                self.assertIn("manage.py counterfoil_toml shop/views", found[0].hint)
                self.assertEqual([message.id for message in found], ["counterfoil.W001"] * 4)
                with file.open("w") as out:
                    call_command("counterfoil_toml", stdout=out)
                self.assertEqual(_checks.check_toml(), [])
                file.write_text(file.read_text().replace("[family.recount]", ""))
                self.assertEqual([message.msg.split()[-1] for message in _checks.check_toml()], ["recount"] * 2)
        self.assertEqual(checks.run_checks(databases=["default"]), [])

    def test_migrations_need_no_package(self):
        field = Product._meta.get_field("views_count")
        self.assertIs(type(field.clone()), models.BigIntegerField)
        self.assertEqual(field.deconstruct()[1], "django.db.models.BigIntegerField")

    def test_tasks(self):
        from celery import current_app

        from counterfoil.django.tasks import count, delay_count

        current_app.conf.task_always_eager = True
        delay_count("views", self.one.pk, 2)
        self.assertEqual(self.values("views"), [2, 0])
        epoch = client().buffered("views").request_epoch("job", self.one.pk)
        for _ in range(2):
            count.apply(args=("views", self.one.pk, 1, epoch), task_id="job", throw=True)
        self.assertEqual(self.values("views"), [3, 0])
        with self.assertLogs("counterfoil"):
            count.apply(args=("views", self.one.pk, 1, "another epoch"), task_id="late", throw=True)


if __name__ == "__main__":
    unittest.main()
