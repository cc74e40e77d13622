"""Buffered families: sums of deltas."""

from __future__ import annotations

import copy
import logging
import random
import threading
import zlib
from itertools import chain
from typing import Any, Callable, Iterable, Mapping, Union

from ._base import Base, D, Table
from ._errors import CounterfoilError, NotCounted, OutcomeUnknown, value_of
from ._family import CALLS, Description, Words, call, id_bytes, integer
from ._steps import Share, Steps
from ._value import ExactValues

HITS = 1000
MAX_SUMS = 100_000
Result = Union[int, None, CounterfoilError]
OnError = Callable[[str, str, int, CounterfoilError], None]


class Buffered(ExactValues[D]):
    """Counters that are summed in Redis, and written to MySQL within a minute by default.

    An id is a str of 1 to 255 bytes, a delta a 64-bit integer.
    """

    kind = "buffered"
    has_queue_per_partition = False
    has_totals = dup_names_refused = True

    def __init__(self, client: Base[D], name: str, table: Table | None = None, on_error: OnError | None = None) -> None:
        super().__init__(client, name, table)
        self._on_error = on_error

    @call
    def add(self, id: str, delta: int = 1) -> Steps[int | None]:
        """Adds to a counter, and returns what it has pending in Redis right after it.

        None: it was counted, but the reply with the number was lost.
        """
        return (yield from self.change(id_bytes(id), integer(delta)))  # type: ignore[no-any-return]

    @call
    def add_many(self, pairs: Mapping[str, int] | Iterable[tuple[str, int]]) -> Steps[list[Result]]:
        """Adds each delta to its id. Returns for each what `add` returns, or the error that `add` would raise."""
        return (yield from self._add_many(pairs.items() if isinstance(pairs, Mapping) else pairs))

    @call
    def add_once(self, request: str, id: str, delta: int = 1, epoch: str | None = None) -> Steps[bool]:
        """Adds once, however often and in whichever process the request is made. Returns False if it was made before.

        `request` names the work, in 1 to 64 bytes. A job that may run again more than a minute later stores `request_epoch`
        before its first call, and passes it as `epoch` to each.
        """
        change = id_bytes(id), integer(delta)
        name = id_bytes(request, 64)
        partition = yield from self._request_partition(name, change)
        home = self.home(partition)
        while True:
            description = yield from self.describe(home)
            epoch = epoch or description.now.decode()
            if epoch.encode() not in (description.now, description.before):
                raise OutcomeUnknown("EXPIRED", "Redis may have forgotten the request")
            script, keys, args = self.part(description, partition, [change])
            words = [b"request:%d:%b:%b" % (len(name), name, change[0]), 1, description.before, "", *args]
            status, reply, _ = yield from self.send(script, self.keys(home, *CALLS) + keys, words)
            if status == b"PASSED":
                raise OutcomeUnknown("PASSED", "another caller has the name of the request")
            if status != b"EXPIRED":
                value_of(*self.decode(status, reply, [1]))
                return bool(status == b"OK")
            self.state.described.pop(home, None)  # the epoch that was passed may still be one of the two

    @call
    def request_epoch(self, request: str, id: str) -> Steps[str]:
        """Returns the epoch that a job stores before its first `add_once`."""
        partition = yield from self._request_partition(id_bytes(request, 64), (id_bytes(id), 0))
        return (yield from self.describe(self.home(partition))).now.decode()

    def later(self, id: str, delta: int = 1) -> None:
        """Adds to a sum in the process, which is sent within milliseconds. Never waits. A killed process loses its sums."""
        id_bytes(id)
        sums = self._sums()
        if sums.take(id, integer(delta)):
            self.client.session.wake()

    @call
    def flush(self) -> Steps[None]:
        """Waits until all that `later` took is counted, and raises the first error of what was not since the last flush."""
        yield from self._sums().flush()

    @call
    def value(self, id: str) -> Steps[int]:
        """Returns the exact value, with what is not in MySQL yet."""
        return (yield from self.exact(id))

    def partition(self, description: Description, change: Any) -> int:
        if description.settings.get("wide"):
            return random.randrange(description.partitions)
        return zlib.crc32(change[0]) % description.partitions

    def part(self, description: Description, partition: int, changes: list[Any]) -> Words:
        hits = sum(abs(delta) for _, delta in changes)  # they only decide when a sync is due
        return "buffered_add", self.keys(partition, "buffer", "meta"), [min(max(hits, 1), HITS), len(changes), *chain(*changes)]

    def _add_many(self, pairs: Iterable[tuple[str, int]]) -> Steps[list[Any]]:
        state = self.state
        entered: list[Any] = []
        for id, delta in pairs:
            try:
                description = state.last or (yield from self.describe(0))
                entered.append(self.enter(state, description, (id_bytes(id), integer(delta))))
            except CounterfoilError as error:
                entered.append(error)
        for queue, last in {one[0]: one[1] for one in entered if isinstance(one, tuple)}.items():
            while not last.settled:
                yield Share(queue, queue.commit())
        return [one[1].result if isinstance(one, tuple) else one for one in entered]

    def _request_partition(self, name: bytes, change: tuple[bytes, int]) -> Steps[int]:
        description = self.state.last or (yield from self.describe(0))
        return zlib.crc32(name if description.settings.get("wide") else change[0]) % description.partitions

    def _sums(self) -> Sums:
        sums: dict[str, Sums] = self.client.session.sums
        return sums.get(self.name) or sums.setdefault(self.name, Sums(self.name, self._add_many, self._on_error))


class Sums:
    """What `later` took in this process, and has not been sent."""

    def __init__(self, name: str, add_many: Callable[[Any], Steps[list[Any]]], on_error: OnError | None) -> None:
        self.waiting: dict[str, int] = {}
        self._name = name
        self._add_many = add_many
        self._on_error = on_error
        self._lock = threading.Lock()
        self._error: CounterfoilError | None = None
        self.temporary: CounterfoilError | None = None
        self._dropped = 0

    def take(self, id: str, delta: int) -> bool:
        """Returns whether this is the first sum that waits."""
        with self._lock:
            if id not in self.waiting and len(self.waiting) >= MAX_SUMS:
                raise NotCounted("BUSY", f"{MAX_SUMS} ids wait to be sent", temporary=True)
            self.waiting[id] = self.waiting.get(id, 0) + delta
            return len(self.waiting) == 1

    def flush(self) -> Steps[None]:
        yield from self.send()  # it may have begun before the last sum was taken
        if not self.temporary:
            yield from self.send()
        error, dropped, self._error, self._dropped = self._error or self.temporary, self._dropped, None, 0
        if error:
            error = copy.copy(error)
            error.explanation += f" ({dropped} ids of {self._name} were dropped, {len(self.waiting)} wait to be sent again)"
            raise error

    def send(self) -> Steps[None]:
        yield Share(self, self._settle())

    def _settle(self) -> Steps[None]:
        """Sends all sums. Those that failed for a temporary reason stay."""
        with self._lock:
            taken, self.waiting, self.temporary = self.waiting, {}, None
        results: list[Any] = [OutcomeUnknown("INTERRUPTED")] * len(taken)
        try:
            results = yield from self._add_many(taken.items())
        finally:
            for (id, delta), result in zip(taken.items(), results):
                if isinstance(result, CounterfoilError):
                    self._failed(id, delta, result)

    def _failed(self, id: str, delta: int, error: CounterfoilError) -> None:
        if isinstance(error, NotCounted) and error.temporary:
            self.temporary = error
            with self._lock:
                self.waiting[id] = self.waiting.get(id, 0) + delta
            return
        self._error = self._error or error
        self._dropped += 1
        logging.getLogger("counterfoil").warning("%s: %+d for %r was dropped: %s", self._name, delta, id, error)
        try:
            if self._on_error:
                self._on_error(self._name, id, delta, error)
        except Exception:
            logging.getLogger("counterfoil").exception("on_error failed")
