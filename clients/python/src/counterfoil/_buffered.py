"""Buffered families: sums of deltas."""

from __future__ import annotations

import random
import zlib
from itertools import chain
from typing import Any, Iterable, Mapping, Union

from ._errors import CounterfoilError, OutcomeUnknown, value_of
from ._family import CALLS, D, Description, Words, call, integer, results_of, valid, words_of
from ._value import ExactValues

MAX_HITS = 1000
Result = Union[int, None, CounterfoilError]


class Buffered(ExactValues[D]):
    """Counters that are summed in Redis, and written to MySQL within a minute by default.

    An id is a str of 1 to 255 bytes, a delta a 64-bit integer.
    """

    kind = "buffered"
    limit, spans_partitions = 1000, True

    @call
    async def add(self, id: str, delta: int = 1) -> int | None:
        """Adds to a counter, and returns what it has pending in Redis right after it.

        None: it was counted, but the reply with the number was lost.
        """
        return await self.channel.change(valid(id), integer(delta))  # type: ignore[no-any-return]

    @call
    async def add_many(self, pairs: Mapping[str, int] | Iterable[tuple[str, int]]) -> list[Result]:
        """Adds each delta to its id. Returns for each what `add` returns, or the error that `add` would
        raise."""
        items = pairs.items() if isinstance(pairs, Mapping) else pairs
        return await self.channel.change_all([_change_or_error(id, delta) for id, delta in items])

    @call
    async def add_once(self, request: str, id: str, delta: int = 1, epoch: str | None = None) -> bool:
        """Adds once, however often and in whichever process the request is made. Returns False if it was made
        before.

        `request` names the work, in 1 to 64 bytes. A job that may run again more than a minute later stores
        `request_epoch` before its first call, and passes it as `epoch` to each.
        """
        channel, change, request = self.channel, (valid(id), integer(delta)), valid(request, 64)
        partition, of = await self._request_partition(request, change[0])
        home, was_lost = channel.home(partition), False
        while True:
            try:  # an epoch that was passed may be newer than what is known
                description = await (channel.ask(home) if epoch else channel.describe(home))
                channel.check_partitions(description, of)
            except CounterfoilError as error:
                raise OutcomeUnknown(error.reason, error.explanation) if was_lost else error
            epoch = epoch or description.now.decode()
            if epoch.encode() not in (description.now, description.before):
                raise OutcomeUnknown("EXPIRED", "Redis may have forgotten the request")
            script, keys, args = self.part(description.settings, home, partition, [change])
            caller = f"request:{len(request.encode())}:{request}:{change[0]}"
            args = [caller, 1, description.before, "", *args]
            words = words_of(script, self.keys(home, *CALLS) + keys, args)
            status, reply, was_lost = await channel.send(words, self.client.deadline(), was_lost)
            if status != b"EXPIRED":  # else the epoch that was passed may still be one of the two
                value_of(*results_of(reply, [1]))
                return status == b"OK"

    @call
    async def request_epoch(self, request: str, id: str) -> str:
        """Returns the epoch that a job stores before its first `add_once`."""
        channel, (partition, _) = self.channel, await self._request_partition(valid(request, 64), valid(id))
        return (await channel.ask(channel.home(partition))).now.decode()  # a job that runs later needs the current one

    def later(self, id: str, delta: int = 1) -> None:
        """Adds to a sum in the process, which is sent within milliseconds. Never waits. A killed process
        loses its sums."""
        channel = self.channel
        channel.check_known(valid(id))
        channel.sums.take(id, integer(delta))
        channel.session.wake()

    @call
    async def flush(self) -> None:
        """Waits until all that `later` took is counted, and raises the first error of what was not since the
        last flush."""
        await self.client.session.flush([self.channel.sums])

    def partition(self, description: Description, change: Any) -> int:
        if description.settings.get("wide"):
            return random.randrange(description.partitions)
        return super().partition(description, change)

    def part(self, settings: dict[str, Any], home: int, partition: int, changes: list[Any]) -> Words:
        pairs = list(chain(*changes))
        hits = min(max(sum(map(abs, pairs[1::2])), 1), MAX_HITS)  # they only decide when a sync is due
        return "buffered_add", self.keys(partition, "buffer", "meta"), [hits, len(changes), *pairs]

    async def _request_partition(self, request: str, id: str) -> tuple[int, int]:
        description: Description = value_of(await self.channel.known())
        description.check(id)
        word = request if description.settings.get("wide") else id
        return zlib.crc32(word.encode()) % description.partitions, description.partitions


def _change_or_error(id: str, delta: int) -> tuple[str, int] | CounterfoilError:
    try:
        return valid(id), integer(delta)
    except CounterfoilError as error:
        return error
