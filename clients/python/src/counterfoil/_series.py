"""Series: counts by slices of time."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from ._channel import Words
from ._errors import NotCounted
from ._family import D, Id, Later, call, integer, valid


class Series(Later[D]):
    """Counts by slices of time, under names of 1 to 200 bytes."""

    kind = "series"

    @call
    async def add(self, name: Id, n: int = 1, at: float | datetime | None = None) -> None:
        """Adds to the current slice of every window, or to those of the time `at`: a `datetime` with a time zone,
        or Unix seconds."""
        await self.channel.change(valid(name, 200), _millis(at), integer(n, 1))

    def later(self, name: Id, n: int = 1, at: float | datetime | None = None) -> None:
        """Adds to a sum in the process, see `Buffered.later`. Without `at` it counts in the slice in which
        Redis takes it."""
        self._later(valid(name, 200), _millis(at), integer(n, 1))

    @call
    async def get(self, name: Id, label: str) -> list[tuple[int, int]]:
        """Returns start (Unix seconds) and count of each slice of a window such as `60s` or `day`, the
        running one last."""
        name, deadline = valid(name, 200), self.client.read_deadline()
        partition, description = await self.channel.described(deadline, name)
        if label not in description.settings["labels"]:
            raise NotCounted("BADARG", f"{self.name} has no window {label!r}")
        window = self.keys(partition, f"series:{label}:{name}")
        read = self.channel.read_of_home
        starts, counts = await read("series_get", partition, CALENDARS, window, label, deadline)
        return list(zip(map(int, starts.split()), map(int, counts.split())))

    def part(self, settings: dict[str, Any], home: int, partition: int, changes: list[Any]) -> Words:
        names = [f"series:{label}:{name}" for name, *_ in changes for label in settings["labels"]]
        keys = self.keys(home, *CALENDARS) + self.keys(partition, "buffer", "meta", "names", "idle", *names)
        return "series_add", keys, [word for name, at, n in changes for word in (name, n, at)]


CALENDARS = "calendar:day", "calendar:month"


def _millis(at: float | datetime | None) -> int | str:
    """Returns a time in Unix milliseconds, or an empty text for now."""
    if at is None:
        return ""
    if isinstance(at, datetime):
        if at.tzinfo is None:
            raise NotCounted("BADTIME", "expected a datetime with a time zone")
        at = at.timestamp()
    if isinstance(at, bool) or not isinstance(at, (int, float)) or not 0 <= at < 1e12:
        raise NotCounted("BADTIME", f"expected a datetime or Unix seconds, not {at!r}")
    return int(at * 1000)
