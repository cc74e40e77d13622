"""Families that count distinct visitors: `activity` for the last minutes of a page, and `visitors` for a day."""

from __future__ import annotations

import zlib
from datetime import date
from typing import Any, Iterable, NamedTuple

from ._channel import Description, Keys, Request, Words
from ._errors import NotCounted, value_of
from ._family import D, Id, Later, call, valid
from ._value import Default, ExactValues

PLACES = 100


class Activity(NamedTuple):
    """The views of a page within the window, and its distinct visitors."""

    views: int
    visitors: int


class ActivityCounters(Later[D]):
    """Views of pages and their distinct visitors, within the window of the family."""

    kind = "activity"

    @call
    async def touch(self, page: Id, visitor: Id | bytes) -> None:
        """Counts a view of a page (1 to 200 bytes) by a visitor (1 to 255 bytes)."""
        await self.channel.change(valid(page, 200), _visitor(visitor), 1)

    def later(self, page: Id, visitor: Id | bytes) -> None:
        """Counts a view a moment later, see `Buffered.later`."""
        self._later(valid(page, 200), _visitor(visitor), 1)

    @call
    async def now(self, page: Id) -> Activity:
        """Returns `(views, visitors)` of the window."""
        page, deadline = valid(page, 200), self.client.read_deadline()
        description = await self.channel.describe(0, deadline)
        first, count = zlib.crc32(page.encode()), description.settings["stripes"]
        places = [((first + stripe) % description.partitions, stripe) for stripe in range(count)]
        step = 1 if self.client.is_cluster else PLACES
        counts: list[int] = []
        for start in range(0, count, step):
            some = places[start : start + step]
            keys: Keys = ()
            for partition, stripe in some:
                keys += self.keys(partition, f"views:{stripe}:{page}", f"visitors:{stripe}:{page}")
            counts += await self.channel.read_of_home("activity_now", some[0][0], (), keys, count, deadline)
        return Activity(sum(counts[::2]), sum(counts[1::2]))

    def partition(self, description: Description, change: Any, request: Request | None = None) -> int:
        page, visitor, _ = change
        stripe: int = zlib.crc32(visitor) % description.settings["stripes"]
        return (zlib.crc32(page.encode()) + stripe) % description.partitions

    def part(self, settings: dict[str, Any], home: int, partition: int, changes: list[Any]) -> Words:
        places: dict[tuple[int, str], list[int]] = {}
        for number, (page, visitor, _) in enumerate(changes):
            places.setdefault((zlib.crc32(visitor) % settings["stripes"], page), []).append(number)
        keys = self.keys(partition, "buffer", "meta")
        args: list[Any] = [settings["stripes"], len(places)]
        for (stripe, page), numbers in places.items():
            keys += self.keys(partition, f"views:{stripe}:{page}", f"visitors:{stripe}:{page}")
            distinct = dict.fromkeys(changes[number][1] for number in numbers)
            args += [page, sum(changes[number][2] for number in numbers), len(distinct), *distinct]
        return "activity_touch", keys, args

    def shared(self, settings: dict[str, Any], changes: list[Any]) -> list[int]:
        places: dict[tuple[int, str], int] = {}
        keys = [(zlib.crc32(visitor) % settings["stripes"], page) for page, visitor, _ in changes]
        return [places.setdefault(key, len(places)) for key in keys]


class Visitors(ExactValues[D], Later[D]):
    """Distinct visitors of a scope on each day."""

    kind = "visitors"

    @call
    async def first_visit(self, scope: Id, day: str | date, visitor: Id | bytes) -> bool:
        """Counts a visitor once for the scope and the day (`YYYY-MM-DD`). Returns whether this is the first
        visit."""
        return bool(await self.channel.change((valid(scope), _day(day)), _visitor(visitor), 1))

    def later(self, scope: Id, day: str | date, visitor: Id | bytes) -> None:
        """Counts a visitor a moment later, see `Buffered.later`."""
        self._later((valid(scope), _day(day)), _visitor(visitor), 1)

    @call
    async def value(self, scope: Id, day: str | date, default: Default | None = None) -> int:  # type: ignore[override]
        """Returns the exact number of visitors, or the default, see `Buffered.value`."""
        return (await self.exact([(valid(scope), _day(day))], default))[0]

    @call
    async def values(  # type: ignore[override]
        self, days: Iterable[tuple[Id, str | date]], default: Default | None = None
    ) -> list[int]:
        """Returns the exact numbers of visitors of many scopes and days, in their order, or the default."""
        return await self.exact([(valid(scope), _day(day)) for scope, day in days], default)

    async def ids(self, keys: list[Any], deadline: float) -> list[str]:
        description = value_of(await self.channel.known(deadline)) if keys else None
        return [_id(description, *key) for key in keys]

    def checked(self, description: Description, change: Any) -> Any:
        (scope, day), *visitor = change
        return (_id(description, scope, day), *visitor)

    def part(self, settings: dict[str, Any], home: int, partition: int, changes: list[Any]) -> Words:
        keys = self.keys(partition, "buffer", "meta", *(f"seen:{id}" for id, *_ in changes))
        visits = [word for id, visitor, _ in changes for word in (id, 1, visitor)]
        return "visitors_first", keys, [len(changes), *visits]


def _id(description: Any, scope: str, day: str) -> str:
    id: str = description.check(valid(f"{scope}{description.settings['separator']}{day}"))
    return id


def _day(day: str | date) -> str:
    try:
        return date.fromisoformat(str(day)).isoformat()
    except ValueError as error:
        raise NotCounted("BADID", f"expected a day as YYYY-MM-DD, not {day!r}") from error


def _visitor(visitor: Id | bytes) -> bytes:
    """Checks a visitor, and returns it as bytes, which need not be text."""
    if isinstance(visitor, bytes) and 0 < len(visitor) <= 255:
        return visitor
    return valid(visitor).encode()  # type: ignore[arg-type]
