"""Views of pages in FastAPI and Starlette, over the client of `counterfoil.asyncio`:

    from fastapi import Depends, FastAPI
    from counterfoil.asyncio import Counterfoil
    from counterfoil.fastapi import Views

    client = Counterfoil.connect("redis://localhost", "shop", daemon="http://127.0.0.1:9292")
    views = Views(client, secret=SECRET)
    app = FastAPI()
    app.add_middleware(views.middleware)

    @app.get("/products/{id}", dependencies=[Depends(views.counts_views("product_views"))])
    async def product(id: int): ...

The middleware counts after the response, and closes the client when the application ends. All calls have the options

- `bots=False`: whether crawlers count, which `crawler-user-agents` recognizes. A prefetch never counts
- `staff=False`: whether staff counts, the requests of which `is_staff(request)` is true
- `repeats=True`: whether each view of a visitor counts. With `False` the family is of kind `visitors`, and each visitor
  counts once a day, in UTC
- `visitor=None`: a function of the request that names the visitor by a `str` or `int`. By default, or where it returns
  `None`, this is a hash of the client's address and `User-Agent`, keyed by the secret, so no cookie is set and no consent
  needed. Behind a proxy run uvicorn with `--proxy-headers` and `--forwarded-allow-ips`
"""

from __future__ import annotations

import logging
from typing import Any, Callable, Coroutine

from starlette.requests import Request

from ._errors import NotCounted
from ._views import hit_of, require_detector
from .asyncio import Counterfoil

log = logging.getLogger("counterfoil")
Predicate = Callable[[Request], Any]


class Views:
    """Counts views of pages."""

    def __init__(self, client: Counterfoil, *, secret: str | None = None, is_staff: Predicate | None = None) -> None:
        self._client, self._secret, self._is_staff = client, secret, is_staff

    async def count_view(self, request: Request, family: str, id: str | int, **options: Any) -> bool:
        """Counts a view of an id. Returns whether it was counted: `False` if it was left out, or repeated by a visitor.
        Raises the errors of the package."""
        hit = self._hit(request, family, id, **options)
        return bool(hit) and await _count(*hit)

    def counts_views(
        self, family: str, *, id: str = "id", **options: Any
    ) -> Callable[[Request], Coroutine[Any, Any, None]]:
        """Returns a dependency, which an endpoint of Starlette awaits. The view counts when the response has been sent
        with a status below 400. An error is logged, not raised. `id` is the name of a parameter of the path."""
        require_detector(options.get("bots", False))

        async def counts(request: Request) -> None:
            if "counterfoil" not in request.scope:
                raise RuntimeError("views are counted by the middleware: app.add_middleware(views.middleware)")
            request.scope["counterfoil"].append((request, family, request.path_params[id], options))

        return counts

    def middleware(self, app: Any) -> Any:
        async def counting(scope: Any, receive: Any, send: Any) -> None:
            status = 500
            scope["counterfoil"] = views = list[Any]()

            async def watched(message: Any) -> None:
                nonlocal status
                if message["type"] == "http.response.start":
                    status = message["status"]
                elif message["type"].startswith("lifespan.shutdown"):
                    await self._close()
                await send(message)

            await app(scope, receive, watched)
            for view in views if status < 400 else ():
                await self._count_or_log(*view)

        return counting

    def _hit(self, request: Request, family: str, id: str | int, **options: Any) -> tuple[Any, ...]:
        who: dict[str, Any] = {"is_staff": self._is_staff, "secret": self._secret}
        address = request.client.host if request.client else None
        return hit_of(self._client, request, family, id, address=address, **who, **options)

    async def _count_or_log(self, request: Request, family: str, id: str, options: Any) -> None:
        """Counts a view, or lets it wait in the process until Redis is available again. Logs an error."""
        try:
            if hit := self._hit(request, family, id, **options):
                try:
                    await _count(*hit)
                except NotCounted as error:
                    if not error.temporary:
                        raise
                    hit[0].later(*hit[1:])
        except Exception as error:
            log.error("%s: a view of %r may not be counted: %s: %s", family, id, type(error).__name__, error)

    async def _close(self) -> None:
        try:
            await self._client.close()
        except Exception as error:
            log.error("the client was closed, and not all was counted: %s", error)


async def _count(counters: Any, *hit: Any) -> bool:
    call = counters.first_visit if counters.kind == "visitors" else counters.add
    return await call(*hit) is not False
