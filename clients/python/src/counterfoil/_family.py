"""A family, and what the calls of all kinds have in common: epochs, callers, repeats."""

from __future__ import annotations

import functools
import json
import re
import secrets
import time
import zlib
from itertools import chain
from typing import Any, Callable, Coroutine, Generic, List, NamedTuple, Tuple, TypeVar, overload

from typing_extensions import Concatenate, ParamSpec, Self

from ._errors import CounterfoilError, Misconfigured, NotCounted, OutcomeUnknown, value_of
from ._redis import FAILURES, LOST, NOT_SENT, REPEATED, SHA1, SOURCES, code_of, refusal
from ._sums import Sums

EPOCH_SECONDS = 30
PAUSE_SECONDS = 0.05
CONFIGURED_WITHIN_SECONDS = 3  # the daemon configures an emptied Redis again
CALLS = "calls", "calls_before"
Call = Tuple[Any, ...]  # words of a command
Keys = Tuple[bytes, ...]
Words = Tuple[str, Keys, List[Any]]  # script, keys, arguments
ROUNDS = 10
MAX_N = 2**53  # the largest number of a call
MAX_STEP = 2**20  # numbers grow by random steps, which differ in two machines resumed from one snapshot


class Blocking:
    """Marks a client whose calls return their result."""


class Awaiting:
    """Marks a client of asyncio, whose calls are coroutines."""


D = TypeVar("D")  # one of both
P = ParamSpec("P")
T = TypeVar("T")


class call(Generic[P, T]):
    """Makes a method of a coroutine function: one that returns the result in a blocking client."""

    def __init__(self, function: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> None:
        self.function = function
        functools.update_wrapper(self, function)  # type: ignore[arg-type]

    @overload
    def __get__(self, family: None, owner: Any) -> Self: ...
    @overload
    def __get__(self, family: Family[Blocking], owner: Any) -> Callable[P, T]: ...
    @overload
    def __get__(self, family: Family[Awaiting], owner: Any) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, family: Any, owner: Any) -> Any:
        if family is None:
            return self
        run, function = family.client.run, self.function

        def method(*args: P.args, **options: P.kwargs) -> Any:
            return run(function(family, *args, **options))

        vars(family)[function.__name__] = method  # which Python finds first from now on
        return method


class Family(Generic[D]):
    """A family. The class of each kind has its calls, and makes their keys and arguments."""

    kind = ""
    limit = 1000  # changes of a call
    spans_partitions = False  # a call may count in several, on a standalone server
    has_totals = False  # a reply has a total before the words of each partition
    dup_names_refused = False  # the reply to a repeat lists what was refused, not all words

    def __init__(self, client: Any, name: str) -> None:
        self.client, self.name = client, f"{client.namespace}/{name}"
        if not re.fullmatch("[a-z0-9_.-]{1,64}/[a-z0-9_.-]{1,64}", self.name):
            raise Misconfigured("NAME", f"expected 1 to 64 characters a-z, 0-9, _, . and -, not {self.name}")
        self.keys: Callable[..., Keys] = functools.partial(_keys, self.name)  # of a partition, by names

    @property
    def channel(self) -> Channel:
        """Its calls in this process or event loop."""
        session, key = self.client.session, (self.kind, self.name)
        channel: Channel | None = session.channels.get(key)
        return channel or session.channels.setdefault(key, Channel(self, session))

    def partition(self, description: Description, change: Any) -> int:
        return zlib.crc32(change[0]) % description.partitions

    def part(self, settings: dict[str, Any], partition: int, changes: list[Any]) -> Words:
        """A call of changes of one partition."""
        raise NotImplementedError

    def first_args(self, settings: dict[str, Any]) -> list[Any]:
        """Arguments before those of the partitions."""
        return []


class Description(NamedTuple):
    """The reply of family_epoch."""

    asked_at: float
    now: bytes
    before: bytes
    partitions: int
    settings: dict[str, Any]


class Queue:
    """Group commit: one call at a time, of the changes that arrived while the one before was under way."""

    def __init__(self, home: int, calls: Keys, partitions: int) -> None:
        self.home, self.calls, self.partitions = home, calls, partitions
        self.waiting: list[Entry] = []
        self.batch: Batch | None = None  # of the call under way
        self.error: CounterfoilError | None = None  # of the call before
        self.caller, self.n = "", 0


class Entry:
    """A change for a queue. The `result`, a value or an error, is set when it is `settled`."""

    __slots__ = ("queue", "partition", "change", "deadline", "settled", "result")

    def __init__(
        self,
        queue: Any,
        partition: int,
        change: Any,
        error: CounterfoilError | None = None,
        deadline: float = 0,
    ) -> None:
        self.queue, self.partition, self.change, self.deadline = queue, partition, change, deadline
        self.settled, self.result = error is not None, error


class Batch:
    """The changes of one call, by partition, and the call itself once it is known."""

    call: Call = ()

    def __init__(self, entries: list[Entry]) -> None:
        self.parts: dict[int, list[Entry]] = {}
        for entry in entries:
            self.parts.setdefault(entry.partition, []).append(entry)
        self.deadline = max((entry.deadline for entry in entries), default=0.0)


class Channel:
    """What a session knows of a family, and the calls that it makes."""

    def __init__(self, family: Any, session: Any) -> None:
        self.family, self.session, self.client = family, session, session.client
        self.sums = Sums(self)
        self.descriptions: dict[int, Description] = {}
        self._last: Description | None = None
        self._clock = time.time() - time.monotonic()  # steps of this machine's clock do not matter
        self._queues: dict[int, Queue] = {}

    def home(self, partition: int) -> int:
        """The partition whose memory has the calls of `partition`."""
        return partition if self.client.is_cluster else 0

    def server_time(self) -> float:
        return time.monotonic() + self._clock

    def server_is_at(self, now_ms: bytes) -> None:
        self._clock = int(now_ms) / 1000 - time.monotonic()

    async def last_description(self, deadline: float = 0) -> Description:
        return self._last or await self.describe(0, deadline)

    async def described(self, *change: Any) -> tuple[int, Description]:
        """The partition of a change, and a fresh description of the family."""
        partition = self.family.partition(await self.last_description(), change)
        return partition, await self.describe(self.home(partition))

    async def describe(self, home: int = 0, deadline: float = 0) -> Description:
        """Asks Redis for the family and its current epoch, unless it did so less than 30 s ago."""
        start, known = time.monotonic(), self.descriptions.get(home)
        if known and start < known.asked_at + EPOCH_SECONDS:
            return known
        name, kind = self.family.name, self.family.kind
        while True:
            asked_at, last = time.monotonic(), self._last
            args = [kind, last.partitions if last else "", "", ""]
            status, *words = await self.read("family_epoch", self.family.keys(home, *CALLS), args, deadline)
            if status == b"OK":
                self._last = Description(asked_at, words[0], words[1], int(words[3]), json.loads(words[4]))
                self.descriptions[home] = self._last
                return self._last
            if status == b"MISMATCH":
                self.descriptions, self._last = {}, None
                found = f"{words[0].decode()} with {int(words[1])} partitions"
                raise Misconfigured("MISMATCH", f"{name} is not the {kind} family of before, but {found}")
            if not last or time.monotonic() > start + min(self.client.retry_for, CONFIGURED_WITHIN_SECONDS):
                raise Misconfigured("UNCONFIGURED", name)
            await self.session.sleep(PAUSE_SECONDS)

    async def read(self, script: str, keys: Keys, args: list[Any], deadline: float = 0) -> list[Any]:
        """Makes a call that may be made any number of times. Returns status and words."""
        try:
            call = words_of(script, keys, args)
            status, words, _ = await self.send(call, deadline or self.client.deadline())
        except OutcomeUnknown as error:
            raise NotCounted(error.reason, error.explanation, temporary=True) from error.__cause__
        return [status, *words]

    async def send(
        self, call: Call, deadline: float, was_lost: bool = False
    ) -> tuple[bytes, list[Any], bool]:
        """Sends a call until there is a reply: the same call, which Redis executes once.

        Returns status, words, and whether a reply was lost.
        """
        while True:
            try:
                status, *words = await self.session.execute(call, deadline)
                return status, words, was_lost
            except FAILURES as error:
                failure, code = error, code_of(error, self.client)
            if code == "NOSCRIPT":
                call = ("EVAL", SOURCES[call[1]], *call[2:])
                continue
            # the library of an application may have repeated the call after a lost reply
            may_repeat = not self.client.is_own and code in REPEATED and code != NOT_SENT
            was_lost = was_lost or code == LOST or may_repeat
            if code not in REPEATED or time.monotonic() + PAUSE_SECONDS >= deadline:
                raise refusal(code, failure, was_lost) from failure
            await self.session.sleep(PAUSE_SECONDS)

    async def change(self, *change: Any) -> Any:
        """Counts a change, in a call with others that wait. Returns its result."""
        deadline = self.client.deadline()
        description = await self.last_description(deadline)
        [result] = await self.settle([self.enter(description, change, deadline)])
        return value_of(result)

    def enter(self, description: Description, change: Any, deadline: float) -> Entry:
        """Makes the entry of a change. Its queue is that of its partition or, where a call may span several,
        of all."""
        partition = self.family.partition(description, change)
        number = 0 if self.family.spans_partitions and not self.client.is_cluster else partition
        queue = self._queues.get(number)
        if not queue or queue.partitions != description.partitions:
            home = self.home(number)
            queue = Queue(home, self.family.keys(home, *CALLS), description.partitions)
            self._queues[number] = queue
        return Entry(queue, partition, change, deadline=deadline)

    async def settle(self, entries: list[Entry]) -> list[Any]:
        """Puts entries into their queues, and makes calls until all are counted, or waits for the caller that
        does so. Returns their results. It may be interrupted, and called again with the same entries."""
        for entry in entries:
            if not entry.settled:
                entry.queue.waiting.append(entry)
        for entry in entries:
            while not entry.settled:
                await self.session.share(entry.queue, self._commit, entry.queue)
        return [entry.result for entry in entries]

    async def _commit(self, queue: Queue) -> None:
        """Makes one call of the changes that wait, or repeats the one that an interrupted caller left."""
        if not queue.batch:
            waiting = queue.waiting[: self.family.limit]
            # an entry waits twice after an interrupt, also of this
            queue.batch = Batch([entry for entry in dict.fromkeys(waiting) if not entry.settled])
            del queue.waiting[: len(waiting)]
        batch = queue.batch
        entries = list(chain.from_iterable(batch.parts.values()))
        try:
            results, queue.error = await self._count(queue, batch) if entries else [], None
        except CounterfoilError as error:
            results, queue.error = [error] * len(entries), error
            queue.caller = ""  # another process may have the name
        for entry, result in zip(entries, results):
            entry.result, entry.settled = result, True
        queue.batch = None

    async def _count(self, queue: Queue, batch: Batch) -> list[Any]:
        """Makes the call of a batch, and returns its results."""
        was_interrupted = bool(batch.call)
        if time.monotonic() > batch.deadline and was_interrupted:
            raise OutcomeUnknown("INTERRUPTED")
        if time.monotonic() > batch.deadline and queue.error:  # a further attempt would take long, too
            raise NotCounted(queue.error.reason, queue.error.explanation, temporary=True)
        while True:
            if not batch.call:
                batch.call = self._call(queue, batch, await self.describe(queue.home, batch.deadline))
            status, words, was_lost = await self.send(batch.call, batch.deadline, was_interrupted)
            if status in (b"OK", b"DUP"):
                return self.results(status, words, list(map(len, batch.parts.values())))
            if status == b"EXPIRED":
                self.descriptions.pop(queue.home, None)
            elif status == b"OUTSIDE":
                self.server_is_at(words[0])
            # the only send, and nothing was done
            is_first = not was_lost and (self.client.is_own or status == b"OUTSIDE")
            if status == b"PASSED" or not is_first or time.monotonic() > batch.deadline:
                raise OutcomeUnknown(status.decode())
            batch.call = ()

    def _call(self, queue: Queue, batch: Batch, description: Description) -> Call:
        if description.partitions != queue.partitions:
            raise Misconfigured("MISMATCH", f"{self.family.name} has another number of partitions now")
        if not queue.caller or queue.n > MAX_N - MAX_STEP:
            queue.caller, queue.n = secrets.token_hex(8), 0
        queue.n += 1 + secrets.randbelow(MAX_STEP)
        caller = [queue.caller, queue.n, description.now, ""]
        script, keys, args = "", queue.calls, caller + self.family.first_args(description.settings)
        for partition, entries in batch.parts.items():
            changes = [entry.change for entry in entries]
            script, own_keys, own_args = self.family.part(description.settings, partition, changes)
            keys += own_keys
            args += own_args
        return words_of(script, keys, args)

    def results(self, status: bytes, words: list[Any], sizes: list[int]) -> list[Any]:
        """The result of each change of a call, which has so many in each partition."""
        count = sum(sizes)
        if status == b"OK":
            for size in sizes if self.family.has_totals else []:
                words = words[size + 1 :] + words[1 : size + 1]  # behind the others, without the total
        elif self.family.dup_names_refused:
            refused = dict(word.split(b":", 1) for word in words[0].split())
            words = [refused.get(b"%d" % number) for number in range(1, count + 1)]
        elif len(words) == 1 and isinstance(words[0], bytes):
            words = words[0].split()
        return list(map(result_of, words)) or [None] * count


@functools.lru_cache(1000)
def _keys(family: str, partition: int, *names: str) -> Keys:
    return tuple(f"cf1:{{{family}/{partition}}}:{name}".encode() for name in names)


def words_of(script: str, keys: Keys, args: list[Any]) -> Call:
    return ("EVALSHA", SHA1[script], len(keys), *keys, *args)


def result_of(word: Any) -> Any:
    """A number, the ticket of a miss, or the error of a word such as `FULL` or `RANGE:5`."""
    if not isinstance(word, bytes):
        return word
    reason, _, value = word.decode().partition(":")
    if reason == "MISS":
        return value
    if reason == "SUM":  # beyond 2^53
        return sum(map(int, value.split(":")))
    return NotCounted(reason, value=int(value) if value else None) if reason.isalpha() else int(word)


def id_bytes(id: str, limit: int = 255) -> bytes:
    """Checks an id, a name or a page."""
    try:
        word = id.encode()
    except (AttributeError, UnicodeEncodeError):
        word = b""
    if not 0 < len(word) <= limit:
        raise NotCounted("BADID", f"expected a str of 1 to {limit} bytes, not {id!r}")
    return word


def visitor_bytes(visitor: str | bytes) -> bytes:
    """Checks a visitor, who need not be text."""
    if isinstance(visitor, bytes) and 0 < len(visitor) <= 255:
        return visitor
    return id_bytes(visitor)  # type: ignore[arg-type]


def integer(number: int, lowest: int = -(2**63)) -> int:
    """Checks a change or a value."""
    if not isinstance(number, int) or isinstance(number, bool) or not lowest <= number < 2**63:
        raise NotCounted("BADARG", f"expected an integer from {lowest} to {2**63 - 1}, not {number!r}")
    return int(number)  # of an enum, too
