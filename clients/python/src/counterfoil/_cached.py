"""Calls of cached families."""

import secrets
from typing import Any, Callable, Dict, List, Optional, Tuple, Union

from ._errors import CounterfoilError, NotCounted, value_of
from ._family import Call, Description, Session, id_bytes, in_order, integer, refused
from ._steps import Commit, Entry, Run, Share, Steps
from ._value import ExactValues, Table

PAIRS = 1000
ROUNDS = 10
TICKET_MS = 30_000

Change = Tuple[bytes, Union[int, bytes]]


class CachedFamily(ExactValues):
    kind = "cached"

    def __init__(
        self, session: Session, name: str, table: Optional[Table] = None, read_row: Optional[Callable[[str], Any]] = None
    ) -> None:
        super().__init__(session, name, table)
        self._read_row = read_row

    def incr(self, id: str, delta: int) -> Steps[int]:
        return self._change(id, integer(delta))

    def set(self, id: str, value: int) -> Steps[int]:
        return self._change(id, b"=%d" % integer(value))

    def get(self, id: str) -> Steps[int]:
        word = id_bytes(id)
        for _ in range(ROUNDS):
            partition, _ = yield from self.located(word)
            keys = self.keys(partition, "base", "buffer", "batch")
            _, reply = yield from self.read("cached_get", keys, [TICKET_MS, "", secrets.token_hex(8), word])
            kind, ticket, *parts = (reply if isinstance(reply, bytes) else b"%d" % reply).split(b":")
            if kind != b"MISS":
                return sum(map(int, [ticket, *parts] if kind == b"SUM" else [kind]))
            yield Share((word, ticket), self._seed(id, partition, ticket))
        raise NotCounted("MISS", "the counter was deleted again and again", temporary=True)

    def _change(self, id: str, change: Union[int, bytes]) -> Steps[int]:
        word = id_bytes(id)
        for _ in range(ROUNDS):
            partition = yield from self.partition(word)
            home = self.home(partition)
            queue = self._queues.get(home) or self.queue(home, PAIRS, lambda changes: self._count(home, changes))
            entry = Entry((word, change))
            queue.waiting.append(entry)
            yield Commit([(queue, entry)])
            result = value_of(entry.result)
            if isinstance(result, int):
                return result
            yield Share((word, result), self._seed(id, partition, result))
        raise NotCounted("MISS", "the counter was deleted again and again", temporary=True)

    def _seed(self, id: str, partition: int, ticket: bytes) -> Steps[None]:
        """Reads the row after the ticket was received, and makes its value the base."""
        if self._read_row:
            try:
                value = integer((yield Run(self._read_row, (id,))))
            except Exception as error:
                raise NotCounted("ROW", f"read_row failed: {error}", temporary=True) from error
        else:
            value = yield from self.from_daemon("rows", id)
        retain = (yield from self.describe(self.home(partition))).settings["retain"]
        yield from self.read("cached_seed", self.keys(partition, "base"), [retain, "", id_bytes(id), ticket, value])

    def _count(self, home: int, changes: List[Change]) -> Steps[List[Any]]:
        """Makes changes with one call; the result of a miss is its ticket."""
        groups: Dict[int, List[int]] = {}

        def call(description: Description) -> Call:
            nonlocal groups
            groups = self.grouped(description, (id for id, _ in changes), home if self.session.is_cluster else None)
            keys: List[bytes] = []
            bounds = [description.settings.get(bound, "") for bound in ("min", "max")]
            args: List[Any] = [TICKET_MS, *bounds]
            for partition, positions in groups.items():
                keys += self.keys(partition, "base", "buffer", "batch", "meta")
                args.append(len(positions))
                for position in positions:
                    args += changes[position]
            return Call("cached_incr", keys, args)

        status, words, _ = yield from self.count(home, call)
        if status == b"DUP":
            words = words[0].split()
        return in_order(groups, [_result(word) for word in words])


def _result(word: Union[int, bytes]) -> Union[int, bytes, CounterfoilError]:
    """A value, the ticket of a miss, or why the counter was not changed."""
    if isinstance(word, bytes):
        if word.startswith(b"MISS:"):
            return word[5:]
        if word[:1].isalpha():
            return refused(word)
    return int(word)
