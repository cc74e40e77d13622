"""Visitors: distinct visitors of a scope on each day."""

from __future__ import annotations

from datetime import date
from typing import Any

from ._errors import NotCounted
from ._family import D, Words, call, id_bytes, visitor_bytes
from ._value import ExactValues


class Visitors(ExactValues[D]):
    """Distinct visitors of a scope on each day."""

    kind = "visitors"

    @call
    async def first_visit(self, scope: str, day: str | date, visitor: str | bytes) -> bool:
        """Counts a visitor once for the scope and the day (`YYYY-MM-DD`). Returns whether this is the first
        visit."""
        return bool((await self.channel.change(id_bytes(_id(scope, day)), visitor_bytes(visitor))))

    @call
    async def value(self, scope: str, day: str | date) -> int:
        """Returns the exact number of visitors."""
        return await self.exact(_id(scope, day))

    def part(self, settings: dict[str, Any], partition: int, changes: list[Any]) -> Words:
        [seen] = self.keys(partition, "seen:")
        keys = self.keys(partition, "buffer", "meta") + tuple(seen + id for id, _ in changes)
        visits = [word for id, visitor in changes for word in (id, 1, visitor)]
        return "visitors_first", keys, [settings["remember"], len(changes), *visits]


def _id(scope: str, day: str | date) -> str:
    id_bytes(scope)
    try:
        return f"{scope}/{date.fromisoformat(str(day)).isoformat()}"
    except ValueError as error:
        raise NotCounted("BADID", f"expected a day as YYYY-MM-DD, not {day!r}") from error
