"""Series: counts by slices of time."""

from __future__ import annotations

from datetime import datetime, time, timedelta
from itertools import chain
from typing import Any
from zoneinfo import ZoneInfo

from ._errors import Misconfigured, NotCounted
from ._family import D, Family, Words, call, integer, valid


class Series(Family[D]):
    """Counts by slices of time, under names of 1 to 200 bytes."""

    kind = "series"

    @call
    async def add(self, name: str, n: int = 1) -> None:
        """Adds to the current slice of every window."""
        await self.channel.change(valid(name, 200), integer(n, 1))

    @call
    async def get(self, name: str, label: str) -> list[tuple[int, int]]:
        """Returns start (Unix seconds) and count of each slice of a window such as `60s` or `day`, the
        running one last."""
        partition, description = await self.channel.described(valid(name, 200))
        slices = dict(description.settings["windows"]).get(label)
        if slices is None:
            raise NotCounted("BADARG", f"{self.name} has no window {label!r}")
        keys = self.keys(partition, f"series:{label}:{valid(name, 200)}")
        _, now_ms, text = await self.channel.read("series_get", keys, [""])
        numbers = list(map(int, text.split()))
        counts = dict(zip(numbers[::2], numbers[1::2]))
        starts: list[int] = []
        end = int(now_ms) // 1000 + 1
        while len(starts) < slices:
            end = _slice(label, end - 1, description.settings)[0]
            starts.append(end)
        return [(start, counts.get(start, 0)) for start in reversed(starts)]

    def part(self, settings: dict[str, Any], partition: int, changes: list[Any]) -> Words:
        windows, keep = settings["windows"], settings.get("keep", [])
        precisions = []
        for label, slices in windows:
            start, end, day = _slice(label, int(self.channel.server_time()), settings)
            kept = f"{label + '/' if len(keep) > 1 else ''}{day or '*'}/" if label in keep else "-"
            precisions.append(f"{label} {f'{start}-{end}' if day else end - start} {slices} {kept}")
        names = [f"series:{label}:{name}" for name, _ in changes for label, _ in windows]
        keys = self.keys(partition, "open", "schedule", "names", "idle", *names)
        return "series_add", keys, [len(windows), *precisions, *chain.from_iterable(changes)]


def _slice(label: str, now: int, settings: dict[str, Any]) -> tuple[int, int, str]:
    """Start and end of a slice in Unix seconds, and its first day in a calendar."""
    if label.endswith("s"):
        seconds = int(label[:-1])
        return now // seconds * seconds, (now // seconds + 1) * seconds, ""
    name = settings.get("time_zone") or "UTC"
    try:
        zone = ZoneInfo(name)
    except Exception as error:
        raise Misconfigured("TIME ZONE", f"there is no {name!r}: install the package tzdata") from error
    first = datetime.fromtimestamp(now, zone).date()
    following = first + timedelta(days=1)
    if label == "month":
        first = first.replace(day=1)
        following = (first + timedelta(days=31)).replace(day=1)
    start, end = (int(datetime.combine(day, time(), zone).timestamp()) for day in (first, following))
    return start, end, first.isoformat()
