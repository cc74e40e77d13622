"""The rules by which the integrations of frameworks count views."""

from __future__ import annotations

import functools
import hmac
from datetime import datetime, timezone
from typing import Any, Callable, Mapping

from ._errors import Misconfigured


@functools.lru_cache(maxsize=1000)  # its patterns take a millisecond
def is_crawler(agent: str) -> bool:
    import crawleruseragents

    return not agent or crawleruseragents.is_crawler(agent)


def require_detector(bots: bool) -> None:
    """Raises where crawlers do not count, and nothing can recognize them."""
    try:
        bots or is_crawler("a browser")  # imports the detector
    except ImportError as error:
        advice = 'run pip install "counterfoil[bots]", or pass bots=True, and crawlers count'
        raise Misconfigured("OPTION", f"crawler-user-agents is not installed: {advice}") from error


def is_view(method: str, headers: Mapping[str, str], bots: bool) -> bool:
    """Returns whether a request is a view that counts: not a HEAD, nor a prefetch of a page that may never be opened,
    nor that of a crawler unless `bots` count."""
    purpose = headers.get("Sec-Purpose", "") + headers.get("Purpose", "")
    if method == "HEAD" or "prefetch" in purpose:
        return False
    require_detector(bots)
    return bots or not is_crawler(headers.get("User-Agent", ""))


def visitor_of(secret: str | None, address: str | None, headers: Mapping[str, str]) -> bytes:
    """Returns a keyed hash of the client's address and browser. It needs no cookie, and does not reveal the address."""
    if not secret or not address:
        what = "a secret" if address else "the client's address, which the server does not know"
        raise Misconfigured("OPTION", f"a visitor is named by {what}: pass visitor=FUNCTION, which names it")
    agent = headers.get("User-Agent", "")
    return hmac.new(secret.encode(), f"{address}\n{agent}".encode(), "sha256").digest()


def hit_of(
    client: Any,
    request: Any,
    family: str,
    id: Any,
    *,
    is_staff: Callable[[Any], Any] | None,
    secret: str | None,
    address: str | None,
    bots: bool = False,
    staff: bool = False,
    repeats: bool = True,
    visitor: Callable[[Any], Any] | None = None,
) -> tuple[Any, ...]:
    """Returns the counters and the arguments of their call, or an empty tuple if the view is left out."""
    if not is_view(request.method, request.headers, bots):
        return ()
    if not staff and is_staff and is_staff(request):
        return ()
    if repeats:
        return client.buffered(family), id
    named = visitor(request) if visitor else None
    if named is None:
        named = visitor_of(secret, address, request.headers)
    return client.visitors(family), id, datetime.now(timezone.utc).date(), named
