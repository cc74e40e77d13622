"""Series: counts by slices of time."""

from __future__ import annotations

from datetime import datetime
from itertools import chain
from typing import Any

from ._errors import NotCounted
from ._family import D, Family, Words, call, integer, valid


class Series(Family[D]):
    """Counts by slices of time, under names of 1 to 200 bytes."""

    kind = "series"

    @call
    async def add(self, name: str, n: int = 1, at: float | datetime | None = None) -> None:
        """Adds to the current slice of every window, or to those of the time `at`: a `datetime` with a time zone,
        or Unix seconds."""
        await self.channel.change(valid(name, 200), integer(n, 1), _millis(at))

    @call
    async def get(self, name: str, label: str) -> list[tuple[int, int]]:
        """Returns start (Unix seconds) and count of each slice of a window such as `60s` or `day`, the
        running one last."""
        name = valid(name, 200)
        partition, description = await self.channel.described(name)
        if label not in description.settings["labels"]:
            raise NotCounted("BADARG", f"{self.name} has no window {label!r}")
        window = self.keys(partition, f"series:{label}:{name}")
        starts, counts = await self.channel.read_of_home("series_get", partition, CALENDARS, window, label)
        return list(zip(map(int, starts.split()), map(int, counts.split())))

    def part(self, settings: dict[str, Any], home: int, partition: int, changes: list[Any]) -> Words:
        names = [f"series:{label}:{name}" for name, *_ in changes for label in settings["labels"]]
        keys = self.keys(home, *CALENDARS) + self.keys(partition, "buffer", "meta", "names", "idle", *names)
        return "series_add", keys, list(chain.from_iterable(changes))


CALENDARS = "calendar:day", "calendar:month"


def _millis(at: float | datetime | None) -> int | str:
    """A time in Unix milliseconds, or nothing for now."""
    if at is None:
        return ""
    if isinstance(at, datetime):
        if at.tzinfo is None:
            raise NotCounted("BADTIME", "expected a datetime with a time zone")
        at = at.timestamp()
    if isinstance(at, bool) or not isinstance(at, (int, float)) or not 0 <= at < 1e12:
        raise NotCounted("BADTIME", f"expected a datetime or Unix seconds, not {at!r}")
    return int(at * 1000)
