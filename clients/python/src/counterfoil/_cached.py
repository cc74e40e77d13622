"""Cached families: values that return with each change."""

from __future__ import annotations

import secrets
from itertools import chain
from typing import Any, Callable

from ._base import Base, D, Table
from ._errors import NotCounted
from ._family import ROUNDS, Description, Words, call, id_bytes, integer
from ._steps import Run, Share, Steps
from ._value import ExactValues

TICKET_MS = 30_000


class Cached(ExactValues[D]):
    """Counters whose value returns with each change, or that must not leave the bounds of their family."""

    kind = "cached"
    has_queue_per_partition = False

    def __init__(self, client: Base[D], name: str, table: Table | None, read_row: Callable[[str], Any] | None) -> None:
        super().__init__(client, name, table)
        self._read_row = read_row

    @call
    def incr(self, id: str, delta: int = 1) -> Steps[int]:
        """Adds to a counter, and returns its new value. `NotCounted("RANGE")` has its `value`."""
        return (yield from self._change(id, integer(delta)))

    @call
    def set(self, id: str, value: int) -> Steps[int]:
        """Sets a counter, and returns its new value."""
        return (yield from self._change(id, b"=%d" % integer(value)))

    @call
    def get(self, id: str) -> Steps[int]:
        """Returns the value, from Redis if it is there."""
        word = id_bytes(id)
        for _ in range(ROUNDS):
            partition, _ = yield from self.described(word)
            keys, args = self.keys(partition, "base", "buffer", "batch"), [TICKET_MS, "", secrets.token_hex(8), word]
            _, reply = yield from self.read("cached_get", keys, args)
            if isinstance(reply, int):
                return reply
            kind, *parts = reply.decode().split(":")
            if kind != "MISS":
                return sum(map(int, parts))  # SUM, beyond 2^53
            yield Share((self.name, word, parts[0]), self._seed(id, word, parts[0]))
        raise NotCounted("MISS", "the counter was deleted again and again", temporary=True)

    @call
    def value(self, id: str) -> Steps[int]:
        """Returns the exact value, without loading the counter into Redis."""
        return (yield from self.exact(id))

    def first_args(self, description: Description) -> list[Any]:
        return [TICKET_MS, description.settings.get("min", ""), description.settings.get("max", "")]

    def part(self, description: Description, partition: int, changes: list[Any]) -> Words:
        return "cached_incr", self.keys(partition, "base", "buffer", "batch", "meta"), [len(changes), *chain(*changes)]

    def _change(self, id: str, change: int | bytes) -> Steps[int]:
        word = id_bytes(id)
        for _ in range(ROUNDS):
            result = yield from self.change(word, change)
            if isinstance(result, int):
                return result
            yield Share((self.name, word, result), self._seed(id, word, result))
        raise NotCounted("MISS", "the counter was deleted again and again", temporary=True)

    def _seed(self, id: str, word: bytes, ticket: str) -> Steps[None]:
        """Reads the row after the ticket was received, and makes its value the base."""
        if self._read_row:
            try:
                value = integer((yield Run(self._read_row, (id,))))
            except Exception as error:
                raise NotCounted("ROW", f"read_row failed: {error!r}", temporary=True) from error
        else:
            value = yield from self.from_daemon(id)
        partition, description = yield from self.described(word)
        yield from self.read("cached_seed", self.keys(partition, "base"), [description.settings["retain"], "", word, ticket, value])
