"""Activity: views of pages and their visitors, within the last minutes."""

from __future__ import annotations

import zlib
from typing import Any, NamedTuple

from ._channel import Channel, Description, Keys
from ._errors import NotCounted
from ._family import ROUNDS, D, Family, Words, call, id_bytes, visitor_bytes

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
    async def touch(self, page: str, visitor: str | bytes) -> None:
        """Counts a view of a page (1 to 200 bytes) by a visitor (1 to 255 bytes)."""
        await self.channel.change(id_bytes(page, 200), visitor_bytes(visitor))

    @call
    async def now(self, page: str) -> Activity:
        """Returns `(views, visitors)` of the window. Visitors are an estimate in a family with `hyperloglog`."""
        channel, word = self.channel, id_bytes(page, 200)
        description = await channel.describe()
        places: dict[int, list[tuple[int, int]]] = {}
        for stripe in range(description.settings["stripes"]):
            partition = (zlib.crc32(word) + stripe) % description.partitions
            places.setdefault(channel.home(partition), []).append((partition, stripe))
        counts: list[int] = []
        for group in places.values():
            for start in range(0, len(group), PLACES):
                counts += await self._read(channel, description.settings, word, group[start : start + PLACES])
        return Activity(sum(counts[::2]), sum(counts[1::2]))

    def partition(self, description: Description, change: Any) -> int:
        page, visitor = change
        return (zlib.crc32(page) + zlib.crc32(visitor) % int(description.settings["stripes"])) % description.partitions

    def part(self, channel: Channel, settings: dict[str, Any], partition: int, changes: list[Any]) -> Words:
        is_estimate, keeps = settings["visitors"] == "hyperloglog", bool(settings.get("keep_minutes"))
        layer = _layer(channel, settings)
        minute = layer * settings["layer"] // 60_000 * 60
        places: dict[tuple[int, bytes], list[bytes]] = {}
        for page, visitor in changes:
            places.setdefault((zlib.crc32(visitor) % settings["stripes"], page), []).append(visitor)
        keys = channel.keys(partition, "open", "schedule")
        args = [settings["layer"], settings["window"] // settings["layer"], int(keeps)]
        args += [layer, len(places)] if is_estimate else [len(places)]
        for (stripe, page), visitors in places.items():
            names = [f"views:{stripe}:", f"layer:{layer}:{stripe}:" if is_estimate else f"visitors:{stripe}:"]
            names += [f"minute:{minute}:{stripe}:"] if is_estimate and keeps else []
            keys += tuple(key + page for key in channel.keys(partition, *names))
            distinct = list(dict.fromkeys(visitors))
            args += [page, len(visitors), len(distinct), *distinct]
        return "activity_touch_hll" if is_estimate else "activity_touch", keys, args

    async def _read(
        self, channel: Channel, settings: dict[str, Any], page: bytes, places: list[tuple[int, int]]
    ) -> list[int]:
        layers, is_estimate = settings["window"] // settings["layer"], settings["visitors"] == "hyperloglog"
        for _ in range(ROUNDS):
            layer = _layer(channel, settings)
            keys: Keys = ()
            for partition, stripe in places:
                names = [f"layer:{number}:{stripe}:" for number in range(layer - layers + 1, layer + 1)]
                names = [f"views:{stripe}:", *(names if is_estimate else [f"visitors:{stripe}:"])]
                keys += tuple(key + page for key in channel.keys(partition, *names))
            script, args = ("activity_now_hll", [layer]) if is_estimate else ("activity_now", [])
            status, *counts = await channel.read(script, keys, ["", settings["layer"], layers, *args])
            if status == b"OK":
                return counts
            channel.server_is_at(counts[0])
        raise NotCounted("OUTSIDE", "the clock of the server steps", temporary=True)


def _layer(channel: Channel, settings: dict[str, Any]) -> int:
    return int(channel.server_time() * 1000) // int(settings["layer"])
