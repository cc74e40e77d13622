"""Views of pages. All of these have the options

- `bots=False`: whether crawlers count, which `crawler-user-agents` recognizes. A prefetch never counts
- `staff=False`: whether users with `is_staff` count
- `repeats=True`: whether each view of a visitor counts. With `False` the family is of kind `visitors`, and each visitor
  counts once a day, in UTC
- `visitor=None`: a function of the request that names the visitor by a `str` or `int`. By default, or where it returns
  `None`, this is a keyed hash of `REMOTE_ADDR` and `User-Agent`, so no cookie is set and no consent needed. Behind a
  proxy `REMOTE_ADDR` must be the client's
"""

from __future__ import annotations

import functools
from typing import Any, Callable

from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async
from django.conf import settings

from .._views import hit_of, require_detector
from ._client import client, count, count_or_log, log


def count_view(request: Any, family: str, id: str | int, **options: Any) -> bool:
    """Counts a view of an id. Returns whether it was counted: `False` if it was left out, or repeated by a visitor.
    Raises the errors of the package."""
    hit = _hit(request, family, id, **options)
    return bool(hit) and count(*hit)


def counts_views(family: str, *, id: str = "pk", **options: Any) -> Callable[[Any], Any]:
    """Decorates a view, also an `async` one: counts when it has succeeded, with a status below 400. An error is logged,
    not raised. `id` is the name of an argument of the URL.

    A page that comes from a cache is not counted: let it call a view of its own, with `count_view`."""
    require_detector(options.get("bots", False))

    def decorate(view: Any) -> Any:
        @functools.wraps(view)
        def counted(request: Any, *args: Any, **kwargs: Any) -> Any:
            response = view(request, *args, **kwargs)
            return _when_done(response, request, family, lambda: kwargs[id], options)

        return markcoroutinefunction(counted) if iscoroutinefunction(view) else counted

    return decorate


class CountsViews:
    """A mixin for class-based views, with the id of `self.object`:

        class ProductPage(CountsViews, DetailView):
            model = Product
            views_family = "product_views"
            views_options = {"staff": True}
    """

    views_family: str
    views_options: dict[str, Any] = {}

    @classmethod
    def as_view(cls, **initkwargs: Any) -> Any:
        require_detector(cls.views_options.get("bots", False))
        return super().as_view(**initkwargs)  # type: ignore[misc]

    def get_views_id(self) -> Any:
        return self.object.pk  # type: ignore[attr-defined]

    def dispatch(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        response = super().dispatch(request, *args, **kwargs)  # type: ignore[misc]
        return _when_done(response, request, self.views_family, self.get_views_id, self.views_options)


def _hit(request: Any, family: str, id: Any, **options: Any) -> tuple[Any, ...]:
    def is_staff(request: Any) -> Any:
        return getattr(getattr(request, "user", None), "is_staff", False)

    secret, address = settings.SECRET_KEY, request.META.get("REMOTE_ADDR")
    return hit_of(client(), request, family, id, is_staff=is_staff, secret=secret, address=address, **options)


def _when_done(response: Any, request: Any, family: str, id: Callable[[], Any], options: Any) -> Any:
    """Counts the view of a response: when a coroutine has returned it, and its template is rendered."""

    def count_page(done: Any) -> None:
        try:
            if done.status_code < 400 and (hit := _hit(request, family, id(), **options)):
                count_or_log(*hit)
        except Exception as error:
            log.error("%s: a view of %s is not counted: %r", family, request.path, error)

    def count_when_rendered(done: Any) -> Any:
        if hasattr(done, "add_post_render_callback"):
            done.add_post_render_callback(count_page)
        else:
            count_page(done)
        return done

    async def awaited() -> Any:
        return await sync_to_async(count_when_rendered)(await response)

    return awaited() if hasattr(response, "__await__") else count_when_rendered(response)
