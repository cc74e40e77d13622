"""Calls of series families."""

import time
from datetime import date, datetime
from typing import Any, List, Tuple
from zoneinfo import ZoneInfo

from ._errors import Misconfigured, NotCounted, value_of
from ._family import Call, Description, Family, id_bytes, integer, refused
from ._steps import Commit, Entry, Steps

PAIRS = 100
Change = Tuple[bytes, int]


class SeriesFamily(Family):
    kind = "series"

    def add(self, name: str, n: int) -> Steps[None]:
        change = id_bytes(name, 200), integer(n, 1)
        partition = yield from self.partition(change[0])
        queue = self._queues.get(partition) or self.queue(partition, PAIRS, lambda changes: self._count(partition, changes))
        entry = Entry(change)
        queue.waiting.append(entry)
        yield Commit([(queue, entry)])
        value_of(entry.result)

    def get(self, name: str, label: str) -> Steps[List[Tuple[int, int]]]:
        word = id_bytes(name, 200)
        partition, description = yield from self.located(word)
        slices = dict(description.settings["windows"]).get(label)
        if slices is None:
            raise NotCounted("BADARG", f"{self.full_name} has no window {label!r}")
        key = self.keys(partition, "series:%s:" % label)[0] + word
        _, now_ms, text = yield from self.read("series_get", [key], [""])
        numbers = [int(number) for number in text.split()]
        counts = dict(zip(numbers[::2], numbers[1::2]))
        zone = self._zone(description)
        return [(start, counts.get(start, 0)) for start in _starts(label, int(now_ms) // 1000, slices, zone)]

    def _count(self, partition: int, changes: List[Change]) -> Steps[List[Any]]:
        def call(description: Description) -> Call:
            self.grouped(description, (name for name, _ in changes), partition)
            precisions = self._precisions(description)
            keys = self.keys(partition, "open", "schedule", "names", "idle")
            for name, _ in changes:
                keys += [key + name for key in self.keys(partition, *(f"series:{label}:" for label, _ in description.settings["windows"]))]
            return Call("series_add", keys, [len(precisions), *precisions, *(word for change in changes for word in change)])

        status, words, _ = yield from self.count(self.home(partition), call)
        if status == b"DUP":
            refusals = dict(word.split(b":") for word in words[0].split())
            words = [refusals.get(b"%d" % number, 1) for number in range(1, len(changes) + 1)]
        return [refused(word) if isinstance(word, bytes) else None for word in words]

    def _precisions(self, description: Description) -> List[str]:
        """Each window as the script knows it: `LABEL SLICE SLICES KEEP`."""
        keep = description.settings.get("keep", [])
        now, zone = int(self.server_time()), self._zone(description)
        precisions = []
        for label, slices in description.settings["windows"]:
            if label.endswith("s"):
                slice, start = label[:-1], "*"
            else:
                first = _first_day(label, now, zone)
                slice, start = f"{_midnight(first, zone)}-{_midnight(_next(label, first), zone)}", first.isoformat()
            prefix = f"{label}/" if len(keep) > 1 else ""
            precisions.append(f"{label} {slice} {slices} {prefix + start + '/' if label in keep else '-'}")
        return precisions

    def _zone(self, description: Description) -> ZoneInfo:
        name = description.settings.get("time_zone") or "UTC"
        try:
            return ZoneInfo(name)
        except Exception as error:
            raise Misconfigured("TIME ZONE", f"Python knows no time zone {name!r}: install the package tzdata") from error


def _starts(label: str, now: int, slices: int, zone: ZoneInfo) -> List[int]:
    """The starts of the slices of a window, the oldest first."""
    if label.endswith("s"):
        seconds = int(label[:-1])
        return [(now // seconds - back) * seconds for back in range(slices - 1, -1, -1)]
    first = _first_day(label, now, zone)
    starts = []
    for _ in range(slices):
        starts.append(_midnight(first, zone))
        first = _first(label, date.fromordinal(first.toordinal() - 1))
    return starts[::-1]


def _first_day(label: str, now: int, zone: ZoneInfo) -> date:
    """The first day of the current day or month."""
    return _first(label, datetime.fromtimestamp(now, zone).date())


def _first(label: str, day: date) -> date:
    return day.replace(day=1) if label == "month" else day


def _next(label: str, first: date) -> date:
    """The first day of the day or month that follows."""
    return _first(label, date.fromordinal(first.toordinal() + (31 if label == "month" else 1)))


def _midnight(day: date, zone: ZoneInfo) -> int:
    return int(datetime(day.year, day.month, day.day, tzinfo=zone).timestamp())
