"""Buffered families: sums of deltas."""

from __future__ import annotations

import random
import zlib
from itertools import chain
from typing import Any, Iterable, Mapping, Tuple, Union

from ._channel import Description, Request, Words
from ._errors import CounterfoilError
from ._family import D, Id, Later, call, integer, valid
from ._results import Before
from ._value import ExactValues

MAX_HITS = 1000
Result = Union[int, None, CounterfoilError]
Pairs = Union[Mapping[str, int], Mapping[int, int], Iterable[Tuple[Id, int]]]


class Buffered(ExactValues[D], Later[D]):
    """Counters that are summed in Redis, and written to MySQL within a minute by default.

    An id is a str of 1 to 255 bytes, or an int, which stands for its decimal text; a delta is a 64-bit integer.
    """

    kind = "buffered"
    limit, spans_partitions = 1000, True

    @call
    async def add(self, id: Id, delta: int = 1) -> int | None:
        """Adds to a counter, and returns what it has pending in Redis right after it.

        None: it was counted, but the reply with the number was lost.
        """
        return await self.channel.change(valid(id), integer(delta))  # type: ignore[no-any-return]

    @call
    async def add_many(self, pairs: Pairs) -> list[Result]:
        """Adds each delta to its id. Returns for each what `add` returns, or the error that `add` would
        raise."""
        items = pairs.items() if isinstance(pairs, Mapping) else pairs
        return await self.channel.change_all([_change_or_error(id, delta) for id, delta in items])

    @call
    async def add_once(self, request: Id, id: Id, delta: int = 1, epoch: str | None = None) -> bool:
        """Adds once, however often and in whichever process the request is made. Returns False if it was made
        before.

        `request` names the work, in 1 to 64 bytes. Redis remembers it for an hour, or as long as the family's
        `remember_requests`. A job that may run again later stores `request_epoch` before its first call, and
        passes it as `epoch` to each: then it never counts twice.
        """
        change, named = (valid(id), integer(delta)), (valid(request, 64), epoch)
        return not isinstance(await self.channel.change(*change, request=named), Before)

    @call
    async def request_epoch(self, request: Id, id: Id) -> str:
        """Returns the epoch that a job stores before its first `add_once`."""
        return await self.channel.request_epoch(valid(request, 64), valid(id))

    def later(self, id: Id, delta: int = 1) -> None:
        """Adds to a sum in the process, which is sent within milliseconds. Never waits. A killed process
        loses its sums."""
        self._later(valid(id), integer(delta))

    def partition(self, description: Description, change: Any, request: Request | None = None) -> int:
        # in a wide family any partition takes a hit, but a request needs the same one in every process
        if description.settings.get("wide"):
            word = zlib.crc32(request[0].encode()) if request else random.getrandbits(32)
            return word % description.partitions
        return super().partition(description, change)

    def first_args(self, settings: dict[str, Any], requests: int) -> list[Any]:
        return [requests]

    def part(self, settings: dict[str, Any], home: int, partition: int, changes: list[Any]) -> Words:
        pairs = list(chain(*changes))
        hits = min(max(sum(map(abs, pairs[1::2])), 1), MAX_HITS)  # Redis uses it only to decide when a sync is due
        return "buffered_add", self.keys(partition, "buffer", "meta"), [hits, len(changes), *pairs]


def _change_or_error(id: Id, delta: int) -> tuple[str, int] | CounterfoilError:
    try:
        return valid(id), integer(delta)
    except CounterfoilError as error:
        return error
