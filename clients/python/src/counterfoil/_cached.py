"""Cached families: values that return with each change."""

from __future__ import annotations

import secrets
from itertools import chain
from typing import Any, Callable

from ._channel import ROUNDS, Request, Words
from ._errors import NotCounted, value_of
from ._family import D, Id, call, integer, valid
from ._results import result_of
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
    async def incr(self, id: Id, delta: int = 1) -> int:
        """Adds to a counter, and returns its new value. `NotCounted("RANGE")` has its `value`."""
        return await self._with_base(id, integer(delta))

    @call
    async def incr_once(self, request: Id, id: Id, delta: int = 1, epoch: str | None = None) -> int:
        """Adds once, however often and in whichever process the request is made, and returns the value that
        the counter had then. A request that the bounds refused is refused again. See `Buffered.add_once`."""
        return int(await self._with_base(id, integer(delta), (valid(request, 64), epoch)))

    @call
    async def request_epoch(self, request: Id, id: Id) -> str:
        """Returns the epoch that a job stores before its first `incr_once`."""
        return await self.channel.request_epoch(valid(request, 64), valid(id))

    @call
    async def set(self, id: Id, value: int) -> int:
        """Sets a counter, and returns its new value."""
        return await self._with_base(id, b"=%d" % integer(value))

    @call
    async def get(self, id: Id) -> int:
        """Returns the value, from Redis if it is there."""
        return await self._with_base(id, None)

    def first_args(self, settings: dict[str, Any], requests: int) -> list[Any]:
        return [requests]

    def part(self, settings: dict[str, Any], home: int, partition: int, changes: list[Any]) -> Words:
        keys = self.keys(partition, "base", "buffer", "batch", "meta")
        return "cached_incr", keys, [len(changes), *chain(*changes)]

    async def _with_base(self, id: Id, change: Any, request: Request | None = None) -> int:
        """Makes a change, or reads the value if it is None. If Redis does not have the counter, seeds it from its
        row, and tries again."""
        id = valid(id)
        deadline = self.client.read_deadline() if change is None else self.client.deadline()
        for _ in range(ROUNDS):
            if change is None:
                result = await self._get(id, deadline)
            else:
                result = await self.channel.change(id, change, request=request, deadline=deadline)
            if isinstance(result, int):
                return result
            await self.session.share((self.name, id, result), deadline, self._seed, id, result, deadline)
        raise NotCounted("MISS", "the counter was deleted again and again", temporary=True)

    async def _get(self, id: str, deadline: float) -> Any:
        partition, _ = await self.channel.described(deadline, id)
        keys, args = self.keys(partition, "base", "buffer", "batch", "meta"), [1, "", secrets.token_hex(8), "", id]
        _, reply = await self.channel.read("cached_get", self.channel.home(partition), keys, args, deadline)
        if reply == b"UNCONFIGURED":
            explanation = f"the daemon has not configured the partition of {id!r} in {self.name} yet"
            raise NotCounted("UNCONFIGURED", explanation, temporary=True)
        return value_of(result_of(reply))

    async def _seed(self, id: str, ticket: str, deadline: float) -> None:
        """Reads the row, and makes its value the base of the counter. The row must be read after the ticket was
        received: a value that was read before may be out of date."""
        if self._read_row:
            try:
                row = await self.session.run(self._read_row, id)
                value = "-" if row is None else integer(row)
            except Exception as error:
                raise NotCounted("ROW", f"read_row failed: {error!r}", temporary=True) from error
        else:
            (row,) = await self.find([id], deadline)
            value = "-" if row is None else row
        partition, _ = await self.channel.described(deadline, id)
        home = self.channel.home(partition)
        keys = self.keys(home, "calls") + self.keys(partition, "base")
        _, word = await self.channel.read("cached_seed", home, keys, ["", "", id, ticket, value], deadline)
        if word in (b"NOROW", b"BEYOND"):
            raise NotCounted(word.decode())
