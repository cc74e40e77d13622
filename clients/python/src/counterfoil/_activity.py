"""Calls of activity families."""

import zlib
from typing import Any, Dict, List, NamedTuple, Tuple, Union

from ._errors import NotCounted
from ._family import Call, Description, Family, id_bytes, visitor_bytes
from ._steps import Steps

PLACES = 100
ROUNDS = 10


class Activity(NamedTuple):
    """The views of a page within the window, and its distinct visitors."""

    views: int
    visitors: int


class ActivityFamily(Family):
    kind = "activity"

    def touch(self, page: str, visitor: Union[str, bytes]) -> Steps[None]:
        word, who = id_bytes(page, 200), visitor_bytes(visitor)
        stripe, home = yield from self._stripe(word, who)

        def call(description: Description) -> Call:
            own = description.settings
            partition = self._partition(description, word, stripe)
            if self.session.is_cluster and partition != home:
                raise self.changed()
            keep = int(bool(own.get("keep_minutes")))
            args: List[Any] = [own["layer"], own["window"] // own["layer"], keep]
            names = [f"views:{stripe}:", f"visitors:{stripe}:"]
            if own["visitors"] == "hyperloglog":
                layer = int(self.server_time() * 1000) // own["layer"]
                args.append(layer)
                names[1:] = [f"layer:{layer}:{stripe}:"]
                if keep:
                    names.append(f"minute:{layer * own['layer'] // 60_000 * 60}:{stripe}:")
            keys = self.keys(partition, "open", "schedule") + [key + word for key in self.keys(partition, *names)]
            script = "activity_touch_hll" if own["visitors"] == "hyperloglog" else "activity_touch"
            return Call(script, keys, [*args, 1, word, 1, 1, who])

        yield from self.count(home, call)

    def now(self, page: str) -> Steps[Activity]:
        word = id_bytes(page, 200)
        description = yield from self.describe(0)
        places: Dict[int, List[Tuple[int, int]]] = {}
        for stripe in range(description.settings["stripes"]):
            partition = self._partition(description, word, stripe)
            places.setdefault(self.home(partition), []).append((partition, stripe))
        views = visitors = 0
        for of_home in places.values():
            for start in range(0, len(of_home), PLACES):
                counts = yield from self._read(description, word, of_home[start : start + PLACES])
                views += sum(counts[::2])
                visitors += sum(counts[1::2])
        return Activity(views, visitors)

    def _read(self, description: Description, page: bytes, places: List[Tuple[int, int]]) -> Steps[List[int]]:
        own = description.settings
        layers = own["window"] // own["layer"]
        is_estimate = own["visitors"] == "hyperloglog"
        for _ in range(ROUNDS):
            layer = int(self.server_time() * 1000) // own["layer"]
            keys: List[bytes] = []
            for partition, stripe in places:
                names = [f"views:{stripe}:"]
                if is_estimate:
                    names += [f"layer:{number}:{stripe}:" for number in range(layer - layers + 1, layer + 1)]
                else:
                    names.append(f"visitors:{stripe}:")
                keys += [key + page for key in self.keys(partition, *names)]
            script, last = ("activity_now_hll", [layer]) if is_estimate else ("activity_now", [])
            status, *counts = yield from self.read(script, keys, ["", own["layer"], layers, *last])
            if status == b"OK":
                return counts
            self.server_is_at(counts[0])
        raise NotCounted("OUTSIDE", "the clock of the server steps", temporary=True)

    def _stripe(self, page: bytes, visitor: bytes) -> Steps[Tuple[int, int]]:
        """The stripe of a visitor, and its home."""
        description = self._last or (yield from self.describe(0))
        stripe = zlib.crc32(visitor) % int(description.settings["stripes"])
        return stripe, self.home(self._partition(description, page, stripe))

    def _partition(self, description: Description, page: bytes, stripe: int) -> int:
        return (zlib.crc32(page) + stripe) % description.partitions
