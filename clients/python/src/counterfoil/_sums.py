"""The sums of `later`."""

from __future__ import annotations

import logging
import threading
from typing import Any, Callable

from ._errors import CounterfoilError, NotCounted, value_of

MAX_SUMS = 100_000
OnError = Callable[[str, str, int, CounterfoilError], None]
log = logging.getLogger("counterfoil")


class Sums:
    """What `later` took in a family, and has not been counted."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel
        self._lock = threading.Lock()
        self.waiting: dict[str, int] = {}  # also what is under way
        self._sent: dict[str, Any] = {}  # entries of what is under way
        self.temporary: CounterfoilError | None = None
        self._dropped: CounterfoilError | None = None  # the error of the first that was dropped

    def take(self, id: str, delta: int) -> None:
        with self._lock:
            if self._channel.session.is_closed:
                raise NotCounted("CLOSED", "the client is closed")
            if id not in self.waiting and len(self.waiting) >= MAX_SUMS:
                raise NotCounted("BUSY", f"{MAX_SUMS} ids wait to be sent", temporary=True)
            total = self.waiting.get(id, 0) + delta
            if not -(2**63) <= total < 2**63:
                raise NotCounted("RANGE", f"the sum of {id!r} is beyond 64 bits")
            self.waiting[id] = total

    def raise_error(self) -> None:
        """Raises the first error of sums that were not counted, once for those that were dropped."""
        dropped, self._dropped = self._dropped, None
        value_of(dropped or self.temporary)

    async def send(self, deadline: float) -> None:
        """Sends all sums, or those that another caller is sending. Those that fail for a temporary reason
        stay, unless the client is closed."""
        with self._lock:  # which `take` may have
            if not self.waiting:
                return
        channel = self._channel
        known = await channel.known(deadline)
        with self._lock:
            if not self._sent:
                changes = self.waiting.items()
                self._sent = {change[0]: channel.enter(known, change, deadline) for change in changes}
            sent = self._sent
        results = zip(sent, await channel.settle(list(sent.values())))
        failed = {id: result for id, result in results if isinstance(result, CounterfoilError)}
        with self._lock:
            if self._sent is not sent:  # another caller was faster
                return
            is_closed = channel.session.is_closed
            kept = {id: error for id, error in failed.items() if error.temporary and not is_closed}
            dropped = {id: error for id, error in failed.items() if id not in kept}
            done = {id: entry.change[1] for id, entry in sent.items() if id not in kept}
            left = {id: sum - done.get(id, 0) for id, sum in self.waiting.items() if sum != done.get(id)}
            self.temporary = next(iter(kept.values()), None)
            self._dropped = self._dropped or next(iter(dropped.values()), None)
            self.waiting, self._sent = left, {}
        for id, error in dropped.items():
            self._report(id, done[id], error)

    def _report(self, id: str, delta: int, error: CounterfoilError) -> None:
        family, on_errors = self._channel.family.name, self._channel.client.on_errors
        log.warning("%s: %+d for %r was dropped: %s", family, delta, id, error)
        try:
            if family in on_errors:
                on_errors[family](family, id, delta, error)
        except Exception:
            log.exception("on_error failed")
