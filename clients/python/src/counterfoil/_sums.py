"""The sums of `later`."""

from __future__ import annotations

import logging
import threading
from typing import Any, Callable, Tuple

from ._errors import CounterfoilError, NotCounted, OutcomeUnknown

MAX_SUMS = 100_000
Key = Tuple[Any, ...]  # a change without the number at its end
OnError = Callable[[str, str, int, CounterfoilError], None]
log = logging.getLogger("counterfoil")


class Sums:
    """The sums of a family that `later` took and that are not counted yet."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel
        self._lock = threading.Lock()
        self.waiting: dict[Key, int] = {}  # all sums, with those that are being sent
        self._sent: dict[Key, tuple[int, Any]] = {}  # the sums that are being sent, with their entries
        self.temporary: CounterfoilError | None = None  # why sums wait
        self._dropped: CounterfoilError | None = None  # the error of the first that was dropped

    def take(self, key: Key, n: int) -> None:
        session = self._channel.session
        with self._lock:
            if session.is_closed:
                raise NotCounted("CLOSED")
            if key not in self.waiting and sum(len(sums.waiting) for sums in session.sums) >= MAX_SUMS:
                raise NotCounted("BUSY", f"{MAX_SUMS} sums wait to be sent", temporary=True)
            total = self.waiting.get(key, 0) + n
            if not -(2**63) <= total < 2**63:
                raise NotCounted("RANGE", f"the sum of {key[0]!r} is beyond 64 bits")
            self.waiting[key] = total

    @property
    def is_empty(self) -> bool:
        with self._lock:  # waits for a `take` that is under way
            return not self.waiting

    def take_error(self) -> CounterfoilError | None:
        """Returns the error of sums that were dropped, once, or why sums wait."""
        dropped, self._dropped = self._dropped, None
        return dropped or self.temporary

    async def send(self, deadline: float, is_last: bool = False) -> None:
        """Sends all sums, or waits for those that another caller is sending. Sums that fail for a temporary reason
        stay, unless this is the last send."""
        if self.is_empty:
            return
        channel = self._channel
        known = channel.outage() or await channel.known(deadline)
        if stays(known) and not is_last and not self._sent:  # they would all fail
            self._wait_for(known)
            return
        with self._lock:
            if not self._sent:
                self._sent = {key: (n, channel.enter(known, (*key, n), deadline)) for key, n in self.waiting.items()}
            sent = self._sent
        results = zip(sent, await channel.settle([entry for _, entry in sent.values()]))
        failed = {key: result for key, result in results if isinstance(result, CounterfoilError)}
        with self._lock:
            if self._sent is not sent:  # another caller has settled the same send
                return
            kept = {key: error for key, error in failed.items() if stays(error) and not is_last}
            done = {key: n for key, (n, _) in sent.items() if key not in kept}
            left = {key: n - done.get(key, 0) for key, n in self.waiting.items() if n != done.get(key)}
            dropped = [(*sent[key], error) for key, error in failed.items() if key not in kept]
            self._wait_for(next(iter(kept.values()), None))
            self._dropped = self._dropped or next((error for *_, error in dropped), None)
            self.waiting, self._sent = left, {}
        for n, entry, error in dropped:
            self._report(entry.change[0], n, error)

    def _wait_for(self, error: CounterfoilError | None) -> None:
        if error and not self.temporary:
            log.warning("%s: sums wait: %s", self._channel.family.name, error)
        self.temporary = error

    def _report(self, id: Any, n: int, error: CounterfoilError) -> None:
        family, on_errors = self._channel.family.name, self._channel.client.on_errors
        id = id if isinstance(id, str) else "/".join(id)  # scope and day, if the family's separator is not known
        outcome = "has an unknown outcome" if isinstance(error, OutcomeUnknown) else "was not counted"
        log.warning("%s: %+d for %r %s, and is dropped: %s", family, n, id, outcome, error)
        try:
            if family in on_errors:
                on_errors[family](family, id, n, error)
        except Exception:
            log.exception("on_error failed")


def stays(result: Any) -> bool:
    """Returns whether a sum with this result is sent again."""
    return isinstance(result, CounterfoilError) and (result.temporary or result.reason == "UNCONFIGURED")
