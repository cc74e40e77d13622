"""A client in memory, for the tests of an application: the calls, results and errors of `counterfoil`, without servers.

It counts in the process, and is not the protocol: no server fails, nothing is late, and other processes count by
themselves. Tests of what must be exact need `counterfoil sandbox`.
"""

from __future__ import annotations

import re
import threading
import time
from collections import defaultdict
from datetime import datetime, timezone
from typing import Any, Mapping

from typing_extensions import Unpack

from . import _blocking, asyncio
from ._channel import Channel, Description, Entry, Keys
from ._client import Options
from ._errors import CounterfoilError, Misconfigured, NotCounted, OutcomeUnknown
from ._redis import Address
from ._results import Before

EPOCH = "epoch"  # the epoch of all requests
SLICES = 100  # the number in each window
WINDOW_SECONDS = 300  # the window of activity
AHEAD_SECONDS = 60
Families = Mapping[str, Mapping[str, Any]]


class Memory:
    """The counts of a client's families, in place of Redis and of the daemon."""

    def __init__(self, namespace: str, families: Families) -> None:
        self.lock = threading.Lock()
        self._namespace, self._families = namespace, families
        self._kinds: dict[str, str] = {}
        self.numbers: dict[tuple[str, str], int] = defaultdict(int)  # by family and id
        self.events: dict[tuple[str, str], list[Any]] = defaultdict(list)  # by family and name or page
        self.requests: dict[tuple[str, str, str], Any] = {}

    def settings(self, family: str) -> dict[str, Any]:
        own = self._families.get(family[len(self._namespace) + 1 :], {})
        ids = own.get("ids", r"[\s\S]{1,255}")
        windows = own.get("windows", ["60s", "day"])
        common = {"ids_in_words": ids, "separator": "/", "labels": windows, "stripes": 1}
        return {**common, **own, "ids": ids}

    def describe(self, family: Any) -> Description:
        settings = self.settings(family.name)
        kind = self._kinds.setdefault(family.name, settings.get("kind", family.kind))
        if kind != family.kind:
            raise Misconfigured("MISMATCH", f"{family.name} is {kind}, not {family.kind}")
        return Description(time.monotonic(), b"", EPOCH.encode(), 1, settings, re.compile(settings["ids"]))

    async def values(self, session: Any, family: str, ids: list[str], deadline: float) -> list[int]:
        pattern = self.settings(family)["ids"]
        for id in ids:
            if not re.fullmatch(pattern, id):
                raise Misconfigured("DAEMON", f"{id!r} can have no row")
        return [self.numbers[family, id] for id in ids]


class MemoryChannel(Channel):
    """The calls of a family, in memory."""

    async def ask(self, home: int, deadline: float) -> Description:
        self._last = self.descriptions[home] = self.client.daemons.describe(self.family)
        return self._last

    async def settle(self, entries: list[Entry]) -> list[Any]:
        self._memory: Memory = self.client.daemons
        with self._memory.lock:
            for entry in entries:
                if not entry.settled:
                    entry.result, entry.settled = self._result(entry), True
        return [entry.result for entry in entries]

    def _result(self, entry: Entry) -> Any:
        if not entry.request:
            return self._counted(*entry.change)
        name, epoch = entry.request
        if epoch not in (None, EPOCH):
            return OutcomeUnknown("EXPIRED")
        key, requests = (self.family.name, name, entry.change[0]), self._memory.requests
        if key not in requests:
            requests[key] = self._counted(*entry.change)
            return requests[key]
        known = requests[key]
        return known if isinstance(known, CounterfoilError) else Before(known)

    def _counted(self, id: str, *change: Any) -> Any:
        key, kind = (self.family.name, id), self.family.kind
        if kind == "visitors":
            return self._visited(key, change[0])
        return self._added(key, change[0]) if kind in ("buffered", "cached") else self._noted(key, *change)

    def _added(self, key: tuple[str, str], change: Any) -> Any:
        numbers, settings = self._memory.numbers, self._memory.settings(self.family.name)
        value = int(change[1:]) if isinstance(change, bytes) else numbers[key] + change
        is_cached = self.family.kind == "cached"
        lowest, highest = (1 - 2**53, 2**53 - 1) if is_cached else (-(2**63), 2**63 - 1)
        if not max(settings.get("min", lowest), lowest) <= value <= min(settings.get("max", highest), highest):
            return NotCounted("RANGE", value=numbers[key] if is_cached else None)
        numbers[key] = value
        return value

    def _visited(self, key: tuple[str, str], visitor: bytes) -> int:
        visitors = self._memory.events[key]
        if visitor in visitors:
            return 0
        visitors.append(visitor)
        self._memory.numbers[key] += 1
        return 1

    def _noted(self, key: tuple[str, str], what: Any, n: int) -> Any:
        """Notes a hit of a series, of which `what` is the time, or a view of a page by a visitor."""
        at = what / 1000 if isinstance(what, int) else time.time()
        windows = self._memory.settings(self.family.name)["labels"]
        if not min(starts_of(label)[0] for label in windows) <= at <= time.time() + AHEAD_SECONDS:
            return NotCounted("BADTIME")
        self._memory.events[key].append((at, what, n))
        return 1

    async def read(self, script: str, home: int, keys: Keys, args: list[Any], deadline: float) -> list[Any]:
        """Replies to cached_get. No other script is read this way."""
        return [b"OK", self.client.daemons.numbers[self.family.name, args[-1]]]

    async def read_of_home(
        self, script: str, partition: int, names: Keys, keys: Keys, arg: Any, deadline: float
    ) -> list[Any]:
        events = self.client.daemons.events
        if script == "activity_now":
            page = keys[0].partition(":views:0:")[2]
            since = time.time() - WINDOW_SECONDS
            recent = [(visitor, n) for at, visitor, n in events[self.family.name, page] if at > since]
            return [sum(n for _, n in recent), len({visitor for visitor, _ in recent})]
        name, starts = keys[0].partition(f":series:{arg}:")[2], starts_of(arg)
        counts = dict.fromkeys(starts, 0)
        for at, _, n in events[self.family.name, name]:
            if (start := start_of(arg, at)) in counts:
                counts[start] += n
        return [" ".join(map(str, words)) for words in (starts, counts.values())]


class Counterfoil(_blocking.Counterfoil):
    """A client in memory. `families` has for each family what is not the default: `ids`, a regular expression,
    `separator`, `min`, `max`, and `windows`, a list of labels."""

    channel_type = MemoryChannel

    def __init__(self, namespace: str, families: Families = {}, **options: Unpack[Options]) -> None:
        super().__init__(Address("", 0), namespace, **options)
        self.daemons: Any = Memory(namespace, families)


class AsyncCounterfoil(asyncio.Counterfoil):
    """A client in memory for asyncio."""

    channel_type = MemoryChannel

    def __init__(self, namespace: str, families: Families = {}, **options: Unpack[Options]) -> None:
        super().__init__(Address("", 0), namespace, **options)
        self.daemons: Any = Memory(namespace, families)


def start_of(label: str, at: float) -> int:
    """Returns the start of the slice of a time, in UTC."""
    if label.endswith("s"):
        return int(at) // int(label[:-1]) * int(label[:-1])
    day = datetime.fromtimestamp(at, timezone.utc).replace(hour=0, minute=0, second=0, microsecond=0)
    return int((day.replace(day=1) if label == "month" else day).timestamp())


def starts_of(label: str) -> list[int]:
    """Returns the starts of the slices of a window, the running one last."""
    starts = [start_of(label, time.time())]
    while len(starts) < SLICES:
        starts.insert(0, start_of(label, starts[0] - 1))
    return starts
