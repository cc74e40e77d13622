"""The sums of `later`."""

from __future__ import annotations

import copy
import logging
import threading
from typing import Any, Callable

from ._errors import CounterfoilError, NotCounted

MAX_SUMS = 100_000
OnError = Callable[[str, str, int, CounterfoilError], None]
log = logging.getLogger("counterfoil")


class Sums:
    """What `later` took in a family, and has not been counted."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel
        self._lock = threading.Lock()
        self.waiting: dict[str, int] = {}
        self._sent: dict[str, int] = {}
        self._entries: list[Any] = []
        self.temporary: CounterfoilError | None = None
        self._dropped: list[CounterfoilError] = []

    def take(self, id: str, delta: int) -> bool:
        """Returns whether this is the first sum that waits."""
        with self._lock:
            if id not in self.waiting and len(self.waiting) >= MAX_SUMS:
                raise NotCounted("BUSY", f"{MAX_SUMS} ids wait to be sent", temporary=True)
            self.waiting[id] = self.waiting.get(id, 0) + delta
            return len(self.waiting) == 1

    def raise_error(self) -> None:
        """Raises the first error of sums that were not counted, once for those that were dropped."""
        dropped, self._dropped = self._dropped, []
        first = dropped[0] if dropped else self.temporary
        if first:
            error = copy.copy(first)
            error.explanation += f" ({len(dropped)} ids were dropped, {len(self.waiting)} will be sent again)"
            raise error

    async def send(self) -> None:
        await self._channel.session.share(self, self._send)

    async def _send(self) -> None:
        """Sends all sums. Those that fail for a temporary reason stay."""
        if not self._sent:  # else the one before was interrupted
            with self._lock:
                self._sent, self.waiting = self.waiting, {}
        if self._sent and not self._entries:
            self._entries = await self._channel.family.enter_all(self._sent.items())
        results = [await self._channel.settle(entry) for entry in self._entries]
        sent, self._sent, self._entries, self.temporary = self._sent, {}, [], None
        for (id, delta), result in zip(sent.items(), results):
            if isinstance(result, CounterfoilError) and result.temporary:
                self.temporary = result
                with self._lock:
                    self.waiting[id] = self.waiting.get(id, 0) + delta
            elif isinstance(result, CounterfoilError):
                self._drop(id, delta, result)

    def _drop(self, id: str, delta: int, error: CounterfoilError) -> None:
        family = self._channel.family
        self._dropped.append(error)
        log.warning("%s: %+d for %r was dropped: %s", family.name, delta, id, error)
        try:
            if family.on_error:
                family.on_error(family.name, id, delta, error)
        except Exception:
            log.exception("on_error failed")
