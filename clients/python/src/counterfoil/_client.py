"""The families of a client."""

from __future__ import annotations

from typing import Any, Callable

from ._activity import ActivityCounters
from ._base import Base, D, Table
from ._buffered import Buffered, OnError
from ._cached import Cached
from ._series import Series
from ._visitors import Visitors


class Client(Base[D]):
    def buffered(self, family: str, *, table: Table | None = None, on_error: OnError | None = None) -> Buffered[D]:
        """Sums of deltas. `table` is (table, id column, value column) if the family is stored in a table of the application.
        `on_error(family, id, delta, error)` is called for each sum of `later` that is dropped."""
        return Buffered(self, family, table, on_error)

    def cached(self, family: str, *, table: Table | None = None, read_row: Callable[[str], Any] | None = None) -> Cached[D]:
        """Values that return with each change. `read_row(id)` reads the value of a row from the primary, outside of a
        transaction, and returns 0 where there is none; by default the daemon does it. With asyncio it is a coroutine function,
        or it runs in a thread."""
        return Cached(self, family, table, read_row)

    def series(self, family: str) -> Series[D]:
        """Counts by slices of time."""
        return Series(self, family)

    def activity(self, family: str) -> ActivityCounters[D]:
        """Views and visitors of the last minutes."""
        return ActivityCounters(self, family)

    def visitors(self, family: str, *, table: Table | None = None) -> Visitors[D]:
        """Distinct visitors of a day."""
        return Visitors(self, family, table)
