"""Cached families: values that return with each change."""

from __future__ import annotations

import secrets
from itertools import chain
from typing import Any, Callable

from ._errors import NotCounted, value_of
from ._family import ROUNDS, D, Request, Words, call, integer, result_of, valid
from ._value import ExactValues

ReadRow = Callable[[str], Any]


class Cached(ExactValues[D]):
    """Counters whose value returns with each change, or that must not leave the bounds of their family."""

    kind = "cached"
    limit, spans_partitions = 1000, True

    def __init__(self, client: Any, name: str, read_row: ReadRow | None) -> None:
        super().__init__(client, name)
        self._read_row = read_row

    @call
    async def incr(self, id: str, delta: int = 1) -> int:
        """Adds to a counter, and returns its new value. `NotCounted("RANGE")` has its `value`."""
        return await self._with_base(id, integer(delta))

    @call
    async def incr_once(self, request: str, id: str, delta: int = 1, epoch: str | None = None) -> int:
        """Adds once, however often and in whichever process the request is made, and returns the value that
        the counter had then. A refusal by the bounds stays, too. See `Buffered.add_once`."""
        return int(await self._with_base(id, integer(delta), (valid(request, 64), epoch)))

    @call
    async def request_epoch(self, request: str, id: str) -> str:
        """Returns the epoch that a job stores before its first `incr_once`."""
        return await self.channel.request_epoch(request, id)

    @call
    async def set(self, id: str, value: int) -> int:
        """Sets a counter, and returns its new value."""
        return await self._with_base(id, b"=%d" % integer(value))

    @call
    async def get(self, id: str) -> int:
        """Returns the value, from Redis if it is there."""
        return await self._with_base(id, None)

    def first_args(self, settings: dict[str, Any], requests: int) -> list[Any]:
        return [requests]

    def part(self, settings: dict[str, Any], home: int, partition: int, changes: list[Any]) -> Words:
        keys = self.keys(partition, "base", "buffer", "batch", "meta")
        return "cached_incr", keys, [len(changes), *chain(*changes)]

    async def _with_base(self, id: str, change: Any, request: Request | None = None) -> int:
        """Makes a change, or only reads, and does so again when a miss was seeded."""
        id = valid(id)
        for _ in range(ROUNDS):
            result = await (self._get(id) if change is None else self.channel.change(id, change, request=request))
            if isinstance(result, int):
                return result
            await self.client.session.share((self.name, id, result), self._seed, id, result)
        raise NotCounted("MISS", "the counter was deleted again and again", temporary=True)

    async def _get(self, id: str) -> Any:
        partition, _ = await self.channel.described(id)
        keys = self.keys(partition, "base", "buffer", "batch", "meta")
        _, reply = await self.channel.read("cached_get", keys, [1, "", secrets.token_hex(8), id])
        if reply == b"UNCONFIGURED":
            raise NotCounted("UNCONFIGURED", f"{self.name} in the partition of {id!r}", temporary=True)
        return value_of(result_of(reply))

    async def _seed(self, id: str, ticket: str) -> None:
        """Reads the row after the ticket was received, and makes its value the base."""
        if self._read_row:
            try:
                row = await self.client.session.run(self._read_row, id)
                value = "-" if row is None else integer(row)
            except Exception as error:
                raise NotCounted("ROW", f"read_row failed: {error!r}", temporary=True) from error
        else:
            (row,) = await self.find([id])
            value = "-" if row is None else row
        partition, _ = await self.channel.described(id)
        keys = self.keys(self.channel.home(partition), "calls") + self.keys(partition, "base")
        _, word = await self.channel.read("cached_seed", keys, ["", id, ticket, value])
        if word in (b"NOROW", b"BEYOND"):
            raise NotCounted(word.decode())
