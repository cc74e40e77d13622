"""Calls of buffered families."""

import zlib
from typing import Any, Dict, Iterable, List, Mapping, Optional, Tuple, Union

from ._errors import CounterfoilError, OutcomeUnknown, value_of
from ._family import Call, Description, Session, id_bytes, in_order, integer, refused
from ._later import Later, OnError
from ._steps import Commit, Entry, Queue, Steps
from ._value import ExactValues, Table

PAIRS = 1000
HITS = 1000

Result = Union[int, None, CounterfoilError]


class BufferedFamily(ExactValues):
    kind = "buffered"

    def __init__(
        self, session: Session, name: str, table: Optional[Table] = None, on_error: Optional[OnError] = None
    ) -> None:
        super().__init__(session, name, table)
        self.later = Later(self.full_name, self.add_many, on_error, session.guard())
        session.laters.append(self.later)

    def add(self, id: str, delta: int) -> Steps[Optional[int]]:
        entry = yield from self._enter(id, delta)
        yield Commit([entry])
        return value_of(entry[1].result)  # type: ignore[no-any-return]

    def add_many(self, pairs: Union[Mapping[str, int], Iterable[Tuple[str, int]]]) -> Steps[List[Result]]:
        results: List[Any] = []
        for id, delta in pairs.items() if isinstance(pairs, Mapping) else pairs:
            try:
                results.append((yield from self._enter(id, delta)))
            except CounterfoilError as error:
                results.append(error)
        yield Commit([result for result in results if isinstance(result, tuple)])
        return [result[1].result if isinstance(result, tuple) else result for result in results]

    def request_epoch(self, request: str, id: str) -> Steps[str]:
        _, partition = yield from self._request(request, id)
        return (yield from self.describe(self.home(partition))).now.decode()

    def add_once(self, request: str, id: str, delta: int, epoch: Optional[str]) -> Steps[bool]:
        integer(delta)
        caller, partition = yield from self._request(request, id)
        home = self.home(partition)
        keys = self.keys(home, "calls", "calls_before") + self.keys(partition, "buffer", "meta")
        while True:
            description = yield from self.describe(home)
            epoch = epoch or description.now.decode()
            if epoch.encode() not in (description.now, description.before):
                raise OutcomeUnknown("EXPIRED", "Redis no longer remembers the request")
            args = [caller, 1, description.before, "", _hits([delta]), 1, id.encode(), delta]
            status, words, _ = yield from self.send("buffered_add", keys, args)
            if status != b"EXPIRED":
                break
            self.forget(home)  # as long as the stored epoch is one of the two, Redis remembers the request
        result = _results(status, words, [1])[0]
        if isinstance(result, CounterfoilError):
            raise result
        return bool(status == b"OK")

    def _enter(self, id: str, delta: int) -> Steps[Tuple[Queue, Entry]]:
        """Puts a change into the queue of its home."""
        entry = Entry((id_bytes(id), integer(delta)))
        home = 0
        if self.session.is_cluster:
            description = self._last or (yield from self.describe(0))
            home = next(iter(self.grouped(description, [entry.change[0]], None)))
        queue = self._queues.get(home) or self.queue(home, PAIRS, lambda changes: self._count(home, changes))
        queue.waiting.append(entry)
        return queue, entry

    def _count(self, home: int, changes: List[Any]) -> Steps[List[Result]]:
        """Counts changes with one call."""
        groups: Dict[int, List[int]] = {}

        def call(description: Description) -> Call:
            nonlocal groups
            groups = self.grouped(description, (id for id, _ in changes), home if self.session.is_cluster else None)
            keys: List[bytes] = []
            args: List[Any] = []
            for partition, positions in groups.items():
                keys += self.keys(partition, "buffer", "meta")
                args += [_hits(changes[position][1] for position in positions), len(positions)]
                for position in positions:
                    args += changes[position]
            return Call("buffered_add", keys, args)

        status, words, _ = yield from self.count(home, call)
        return in_order(groups, _results(status, words, [len(positions) for positions in groups.values()]))

    def _request(self, request: str, id: str) -> Steps[Tuple[bytes, int]]:
        """The caller and the partition of a request."""
        name, counter = id_bytes(request, 64), id_bytes(id)
        last = self._last or (yield from self.describe(0))
        partition = zlib.crc32(name if last.settings.get("wide") else counter) % last.partitions
        return b"request:%d:%b:%b" % (len(name), name, counter), partition


def _hits(deltas: Iterable[int]) -> int:
    """How many hits the deltas stand for: this only decides when they are due in MySQL."""
    return min(max(sum(map(abs, deltas)), 1), HITS)


def _results(status: bytes, words: List[Any], groups: List[int]) -> List[Result]:
    """The result of each pair, in the order of the call."""
    if status == b"DUP":
        refusals = dict(word.split(b":") for word in words[0].split())
        numbers = range(1, sum(groups) + 1)
        return [refused(refusals[b"%d" % number]) if b"%d" % number in refusals else None for number in numbers]
    results: List[Result] = []
    at = 0
    for size in groups:
        results += [_result(word) for word in words[at + 1 : at + 1 + size]]  # after the total of the partition
        at += 1 + size
    return results


def _result(word: Union[int, bytes]) -> Result:
    return refused(word) if isinstance(word, bytes) and word.isalpha() else int(word)
