"""The sums of `later`."""

from __future__ import annotations

import copy
import logging
import threading
from typing import Any, Callable

from ._errors import CounterfoilError, NotCounted

MAX_SUMS = 100_000
LOWEST = -(2**63)
OnError = Callable[[str, str, int, CounterfoilError], None]
log = logging.getLogger("counterfoil")


class Sums:
    """What `later` took in a family, and has not been counted."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel
        self._lock = threading.Lock()
        self.waiting: dict[str, int] = {}
        self.sent: dict[str, int] = {}
        self._entries: list[Any] = []
        self.temporary: CounterfoilError | None = None
        self._dropped = 0
        self._first: CounterfoilError | None = None  # the error of the first that was dropped

    def take(self, id: str, delta: int) -> None:
        with self._lock:
            if self._channel.session.is_closed:
                raise NotCounted("CLOSED", "the client is closed")
            if id not in self.waiting and len(self.waiting) >= MAX_SUMS:
                raise NotCounted("BUSY", f"{MAX_SUMS} ids wait to be sent", temporary=True)
            total, sent = self.waiting.get(id, 0) + delta, self.sent.get(id, 0)  # which may come back
            if not (LOWEST <= total < -LOWEST and LOWEST <= total + sent < -LOWEST):
                raise NotCounted("RANGE", f"the sum of {id!r} is beyond 64 bits")
            self.waiting[id] = total

    def raise_error(self) -> None:
        """Raises the first error of sums that were not counted, once for those that were dropped."""
        dropped, first, self._dropped, self._first = self._dropped, self._first, 0, None
        error = copy.copy(first or self.temporary)
        if error:
            error.explanation += f" ({dropped} ids were dropped, {len(self.waiting)} will be sent again)"
            raise error

    async def send(self, deadline: float) -> None:
        await self._channel.session.share(self, self._send, deadline)

    async def _send(self, deadline: float) -> None:
        """Sends all sums. Those that fail for a temporary reason stay, unless the client is closed."""
        channel = self._channel
        if not self.sent:  # else the one before was interrupted, and is continued
            with self._lock:
                self.sent, self.waiting = self.waiting, {}
        if self.sent and not self._entries:
            self._entries = await channel.family.enter_all(channel, list(self.sent.items()), deadline)
        results = zip(self.sent, await channel.settle(self._entries))
        failed = {id: result for id, result in results if isinstance(result, CounterfoilError)}
        with self._lock:
            is_closed = channel.session.is_closed
            kept = {id: error for id, error in failed.items() if error.temporary and not is_closed}
            sent, waiting = self.sent, dict(self.waiting)
            for id in kept:
                waiting[id] = waiting.get(id, 0) + sent[id]
            self.temporary = next(iter(kept.values()), None)
            self.waiting, self.sent, self._entries = waiting, {}, []
        for id, error in failed.items():
            if id not in kept:
                self._drop(id, sent[id], error)

    def _drop(self, id: str, delta: int, error: CounterfoilError) -> None:
        family, on_errors = self._channel.family.name, self._channel.client.on_errors
        self._dropped, self._first = self._dropped + 1, self._first or error
        log.warning("%s: %+d for %r was dropped: %s", family, delta, id, error)
        try:
            if family in on_errors:
                on_errors[family](family, id, delta, error)
        except Exception:
            log.exception("on_error failed")
