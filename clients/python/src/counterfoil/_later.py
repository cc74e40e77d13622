"""Sums in the process, which are sent within milliseconds."""

import logging
import threading
from typing import Any, Callable, Dict, List, Optional

from ._errors import CounterfoilError, NotCounted, OutcomeUnknown, copy_of
from ._steps import Steps

MAX_IDS = 100_000
OnError = Callable[[str, str, int, CounterfoilError], None]
_log = logging.getLogger("counterfoil")


class Later:
    """The sums of one family. `guard` belongs to the driver, which lets one `settle` run at a time."""

    def __init__(self, family: str, add_many: Callable[[Any], Steps[List[Any]]], on_error: Optional[OnError], guard: Any) -> None:
        self._family = family
        self._add_many = add_many
        self._on_error = on_error
        self.guard = guard
        self.sums: Dict[str, int] = {}
        self._lock = threading.Lock()
        self._first_error: Optional[CounterfoilError] = None
        self._failed = 0

    def take(self, id: str, delta: int) -> bool:
        """Adds to a sum, and returns whether it is the first one to be sent."""
        with self._lock:
            sums = self.sums
            if id in sums:
                sums[id] += delta
                return False
            if len(sums) >= MAX_IDS:
                raise NotCounted("BUSY", f"{MAX_IDS} ids wait to be sent", temporary=True)
            sums[id] = delta
            return len(sums) == 1

    def settle(self) -> Steps[Optional[CounterfoilError]]:
        """Sends all sums once. Those that failed for a temporary reason stay; returns the first of these errors."""
        with self._lock:
            taken, self.sums = self.sums, {}
        results: List[Any] = [OutcomeUnknown("INTERRUPTED")] * len(taken)
        try:
            results = yield from self._add_many(taken)
        finally:
            temporary = self._sort(taken, results)
        return temporary

    def _sort(self, taken: Dict[str, int], results: List[Any]) -> Optional[CounterfoilError]:
        temporary: Optional[CounterfoilError] = None
        for (id, delta), result in zip(taken.items(), results):
            if isinstance(result, NotCounted) and result.temporary:
                temporary = temporary or result
                with self._lock:
                    self.sums[id] = self.sums.get(id, 0) + delta
            elif isinstance(result, CounterfoilError):
                self._drop(id, delta, result)
        return temporary

    def raise_errors(self, temporary: Optional[CounterfoilError]) -> None:
        """Raises the first error since the last call, or that of sums that stay."""
        error, count = self._first_error, self._failed
        self._first_error, self._failed = None, 0
        if error:
            error = copy_of(error)
            error.explanation += f" ({count} ids of {self._family} were dropped)"
            raise error
        if temporary:
            error = copy_of(temporary)
            error.explanation += f" ({len(self.sums)} ids of {self._family} wait and will be sent again)"
            raise error

    def _drop(self, id: str, delta: int, error: CounterfoilError) -> None:
        self._first_error = self._first_error or error
        self._failed += 1
        _log.warning("%s: %+d for %r was dropped: %s", self._family, delta, id, error)
        if self._on_error:
            try:
                self._on_error(self._family, id, delta, error)
            except Exception:
                _log.exception("on_error failed")
