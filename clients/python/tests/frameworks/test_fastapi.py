"""counterfoil.fastapi, with counters in memory. The sample in examples/fastapi runs with real servers."""

import sys
import unittest
from datetime import datetime, timezone
from unittest import mock

from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.testclient import TestClient
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

import counterfoil
from counterfoil import Misconfigured, NotCounted
from counterfoil.fastapi import Views
from counterfoil.testing import AsyncCounterfoil

BROWSER = {"User-Agent": "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/126.0.0.0 Safari/537.36"}


def application():
    client = AsyncCounterfoil("shop")
    views = Views(client, secret="of a test", is_staff=lambda request: "X-Staff" in request.headers)
    app = FastAPI()
    app.add_middleware(views.middleware)

    @app.get("/pages/{id}", dependencies=[Depends(views.counts_views("views"))])
    async def page(id: int):
        if id == 404:
            raise HTTPException(404)
        if id == 500:
            raise ValueError
        return Response(status_code=403 if id == 403 else 200)

    @app.get("/visits/{page}", dependencies=[Depends(views.counts_views("visitors", id="page", repeats=False))])
    async def visits(page: str):
        return page

    @app.post("/count/{id}")
    async def count(id: int, request: Request, staff: bool = False, bots: bool = False):
        return await views.count_view(request, "views", id, staff=staff, bots=bots)

    @app.get("/values")
    async def values():
        return await client.buffered("views").values([7, 403, 404, 500])

    @app.get("/days/{day}")
    async def days(day: str):
        return await client.visitors("visitors").value("home", day)

    return app, client


class FastApi(unittest.TestCase):
    def setUp(self):
        app, self.client = application()
        self.web = self.enterContext(TestClient(app, raise_server_exceptions=False, headers=BROWSER))

    def test_pages(self):
        for id in (7, 7, 403, 404, 500, "x"):
            self.web.get(f"/pages/{id}")
        self.web.head("/pages/7")
        for header in ({"User-Agent": "Googlebot/2.1"}, {"User-Agent": ""}, {"Purpose": "prefetch"}, {"X-Staff": "1"}):
            self.assertEqual(self.web.get("/pages/7", headers=header).status_code, 200)
        self.assertEqual(self.web.get("/values").json(), [2, 0, 0, 0])

    def test_visitors(self):
        for agent in (BROWSER["User-Agent"], BROWSER["User-Agent"], "Mozilla/5.0 Firefox/130.0"):
            self.web.get("/visits/home", headers={"User-Agent": agent})
        self.assertEqual(self.web.get(f"/days/{datetime.now(timezone.utc).date()}").json(), 2)

    def test_count_view(self):
        def counted(query="", **headers):
            return self.web.post(f"/count/7{query}", headers=headers).json()

        self.assertIs(counted(), True)
        self.assertEqual([counted(**{"X-Staff": "1"}), counted("?staff=1", **{"X-Staff": "1"})], [False, True])
        self.assertEqual([counted(**{"User-Agent": "curl/8"}), counted("?bots=1", **{"User-Agent": "curl/8"})], [False, True])

    def test_an_error_breaks_no_page(self):
        with mock.patch("counterfoil.Buffered.add", side_effect=NotCounted("LOST", temporary=True)):
            self.assertEqual(self.web.get("/pages/7").status_code, 200)
        with mock.patch("counterfoil.Buffered.add", side_effect=Misconfigured("MISMATCH")), self.assertLogs("counterfoil"):
            self.assertEqual(self.web.get("/pages/7").status_code, 200)
        while self.web.get("/values").json() == [0, 0, 0, 0]:  # until `later` has sent it
            pass
        self.assertEqual(self.web.get("/values").json(), [1, 0, 0, 0])


class Applications(unittest.TestCase):
    def test_the_end_closes_the_client(self):
        app, client = application()
        with mock.patch.object(client, "close", wraps=client.close) as close:
            with TestClient(app, headers=BROWSER) as web:
                web.get("/pages/7")
                close.assert_not_called()
            close.assert_called_once()

    def test_without_the_middleware(self):
        app = FastAPI()
        views = Views(AsyncCounterfoil("shop"))

        @app.get("/{id}", dependencies=[Depends(views.counts_views("views"))])
        async def page(id: int):
            return id

        with self.assertRaisesRegex(RuntimeError, "add_middleware"):
            TestClient(app).get("/7")

    def test_starlette(self):
        client = AsyncCounterfoil("shop")
        views = Views(client)
        counts = views.counts_views("views")

        async def page(request):
            await counts(request)
            return PlainTextResponse(str(await client.buffered("views").value(7)))

        app = Starlette(routes=[Route("/pages/{id}", page)])
        app.add_middleware(views.middleware)
        with TestClient(app, headers=BROWSER) as web:
            self.assertEqual([web.get("/pages/7").text for _ in range(2)], ["0", "1"])

    def test_without_a_detector(self):
        from counterfoil import _views

        views = Views(AsyncCounterfoil("shop"))
        with mock.patch.dict(sys.modules, {"crawleruseragents": None}):
            _views.is_crawler.cache_clear()
            with self.assertRaisesRegex(counterfoil.Misconfigured, "pip install"):
                views.counts_views("views")
            views.counts_views("views", bots=True)


if __name__ == "__main__":
    unittest.main()
