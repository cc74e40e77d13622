"""Activity: views of pages and their visitors, within the last minutes."""

from __future__ import annotations

import zlib
from typing import Any, NamedTuple

from ._base import D
from ._errors import NotCounted
from ._family import ROUNDS, Description, Family, Words, call, id_bytes, visitor_bytes
from ._steps import Steps

PLACES = 100


class Activity(NamedTuple):
    """The views of a page within the window, and its distinct visitors."""

    views: int
    visitors: int


class ActivityCounters(Family[D]):
    """Views of pages and their distinct visitors, within the window of the family."""

    kind = "activity"
    limit = 300

    @call
    def touch(self, page: str, visitor: str | bytes) -> Steps[None]:
        """Counts a view of a page (1 to 200 bytes) by a visitor (1 to 255 bytes)."""
        yield from self.change(id_bytes(page, 200), visitor_bytes(visitor))

    @call
    def now(self, page: str) -> Steps[Activity]:
        """Returns `(views, visitors)` of the window. Visitors are an estimate in a family with `hyperloglog`."""
        word = id_bytes(page, 200)
        description = yield from self.describe(0)
        places: dict[int, list[tuple[int, int]]] = {}
        for stripe in range(description.settings["stripes"]):
            partition = (zlib.crc32(word) + stripe) % description.partitions
            places.setdefault(self.home(partition), []).append((partition, stripe))
        counts: list[int] = []
        for group in places.values():
            for start in range(0, len(group), PLACES):
                counts += yield from self._read(description.settings, word, group[start : start + PLACES])
        return Activity(sum(counts[::2]), sum(counts[1::2]))

    def partition(self, description: Description, change: Any) -> int:
        page, visitor = change
        return (zlib.crc32(page) + zlib.crc32(visitor) % int(description.settings["stripes"])) % description.partitions

    def part(self, description: Description, partition: int, changes: list[Any]) -> Words:
        own, is_estimate = description.settings, description.settings["visitors"] == "hyperloglog"
        layer, keeps = self._layer(own), bool(own.get("keep_minutes"))
        minute = layer * own["layer"] // 60_000 * 60
        places: dict[tuple[int, bytes], list[bytes]] = {}
        for page, visitor in changes:
            places.setdefault((zlib.crc32(visitor) % own["stripes"], page), []).append(visitor)
        keys = self.keys(partition, "open", "schedule")
        args: list[Any] = [own["layer"], own["window"] // own["layer"], int(keeps), *([layer] if is_estimate else []), len(places)]
        for (stripe, page), visitors in places.items():
            names = [f"views:{stripe}:", f"layer:{layer}:{stripe}:" if is_estimate else f"visitors:{stripe}:"]
            names += [f"minute:{minute}:{stripe}:"] if is_estimate and keeps else []
            keys += [key + page for key in self.keys(partition, *names)]
            distinct = list(dict.fromkeys(visitors))
            args += [page, len(visitors), len(distinct), *distinct]
        return "activity_touch_hll" if is_estimate else "activity_touch", keys, args

    def _layer(self, own: dict[str, Any]) -> int:
        return int(self.server_time() * 1000) // int(own["layer"])

    def _read(self, own: dict[str, Any], page: bytes, places: list[tuple[int, int]]) -> Steps[list[int]]:
        layers, is_estimate = own["window"] // own["layer"], own["visitors"] == "hyperloglog"
        for _ in range(ROUNDS):
            keys, layer = [], self._layer(own)
            for partition, stripe in places:
                names = [f"layer:{number}:{stripe}:" for number in range(layer - layers + 1, layer + 1)]
                names = [f"views:{stripe}:", *(names if is_estimate else [f"visitors:{stripe}:"])]
                keys += [key + page for key in self.keys(partition, *names)]
            script, args = ("activity_now_hll", [layer]) if is_estimate else ("activity_now", [])
            status, *counts = yield from self.read(script, keys, ["", own["layer"], layers, *args])
            if status == b"OK":
                return counts
            self.server_is_at(counts[0])
        raise NotCounted("OUTSIDE", "the clock of the server steps", temporary=True)
