"""A family as Redis knows it, and what calls of all kinds have in common: epochs, callers, repeats."""

from __future__ import annotations

import functools
import json
import re
import secrets
import time
import zlib
from typing import Any, Awaitable, Callable, Generic, Iterable, List, NamedTuple, Tuple, TypeVar, overload

from typing_extensions import Concatenate, ParamSpec, Self

from . import _redis
from ._base import Awaiting, Base, Blocking, D
from ._errors import CounterfoilError, Misconfigured, NotCounted, OutcomeUnknown, value_of
from ._steps import Command, Entry, Queue, Share, Sleep, Steps

EPOCH_SECONDS = 30
PAUSE_SECONDS = 0.05
CONFIGURED_WITHIN_SECONDS = 3  # the daemon configures an emptied Redis again
ROUNDS = 10
CALLS = "calls", "calls_before"

TEMPORARY = {"LOADING", "BUSY", "CLUSTERDOWN", "MASTERDOWN", "TRYAGAIN", "READONLY", _redis.NOT_SENT}
NOT_COUNTED = {"OOM", "MISCONF", "NOREPLICAS", "WRONGTYPE", "BADSTATE"}
MISCONFIGURED = {"NOAUTH", "BADARG", "BADKEY", "CROSSSLOT", "MOVED", "ASK"}
EXPLANATIONS = {
    "CROSSSLOT": "the server is a cluster, use RedisCluster",
    "MOVED": "the server is a cluster, use RedisCluster",
    "BADKEY": "the client adds a prefix to keys, or changes them in another way",
    "UNCONFIGURED": "declare the family in the daemon's counterfoil.toml, create the tables with `counterfoil init`, and start the"
    " daemon; or its name or the number of the Redis database is wrong, or Redis was emptied",
    "EXPIRED": "Redis no longer knows this call: it lost its memory, or the call took too long",
    "OUTSIDE": "the call took too long, and belongs to a slice of time that is over",
    "PASSED": "two processes use one caller name",
}

P = ParamSpec("P")
T = TypeVar("T")
Words = Tuple[str, List[bytes], List[Any]]  # script, keys, arguments


class Description(NamedTuple):
    """The reply of family_epoch."""

    asked_at: float
    now: bytes
    before: bytes
    partitions: int
    settings: dict[str, Any]


class State:
    """What a process, or an event loop, knows of a family."""

    def __init__(self) -> None:
        self.described: dict[int, Description] = {}
        self.last: Description | None = None
        self.clock = time.time() - time.monotonic()  # steps of this machine's clock do not matter
        self.queues: dict[int, Queue] = {}

    def fresh(self, home: int) -> Description | None:
        """The description of less than 30 s ago."""
        known = self.described.get(home)
        return known if known and time.monotonic() < known.asked_at + EPOCH_SECONDS else None


class call(Generic[P, T]):
    """Makes a method that returns steps a call: one that runs them in a blocking client, a coroutine function with asyncio."""

    def __init__(self, steps: Callable[Concatenate[Any, P], Steps[T]]) -> None:
        self.steps = steps
        functools.update_wrapper(self, steps)  # type: ignore[arg-type]

    @overload
    def __get__(self, family: None, owner: Any) -> Self: ...
    @overload
    def __get__(self, family: Family[Blocking], owner: Any) -> Callable[P, T]: ...
    @overload
    def __get__(self, family: Family[Awaiting], owner: Any) -> Callable[P, Awaitable[T]]: ...
    def __get__(self, family: Any, owner: Any) -> Any:
        if family is None:
            return self
        return lambda *args, **options: family.client.session.run(self.steps(family, *args, **options))


class Family(Generic[D]):
    """A family. The class of each kind has its calls, and makes their keys and arguments."""

    kind = ""
    limit = 1000  # changes of a call
    has_queue_per_partition = True
    has_totals = False  # a reply has a total before the words of each partition
    dup_names_refused = False  # the reply to a repeat lists what was refused, not all words

    def __init__(self, client: Base[D], name: str) -> None:
        self.client, self.name = client, f"{client.namespace}/{name}"
        if not re.fullmatch("[a-z0-9_.-]{1,64}/[a-z0-9_.-]{1,64}", self.name):
            raise Misconfigured("NAME", f"expected a namespace and a name of 1 to 64 characters a-z, 0-9, _, . and -, not {self.name}")

    @property
    def state(self) -> State:
        states: dict[Any, State] = self.client.session.states
        return states.get((self.kind, self.name)) or states.setdefault((self.kind, self.name), State())

    def part(self, description: Description, partition: int, changes: list[Any]) -> Words:
        """A call of changes of one partition."""
        raise NotImplementedError

    def first_args(self, description: Description) -> list[Any]:
        """Arguments before those of the partitions."""
        return []

    def partition(self, description: Description, change: Any) -> int:
        return zlib.crc32(change[0]) % description.partitions

    def keys(self, partition: int, *names: str) -> list[bytes]:
        return [*_keys(self.name, partition, *names)]

    def home(self, partition: int) -> int:
        """The partition whose memory has the calls of `partition`."""
        return partition if self.client.is_cluster else 0

    def server_time(self) -> float:
        return time.monotonic() + self.state.clock

    def server_is_at(self, now_ms: bytes) -> None:
        self.state.clock = int(now_ms) / 1000 - time.monotonic()

    def described(self, *change: Any) -> Steps[tuple[int, Description]]:
        """The partition of a change, and a fresh description of the family."""
        partition = self.partition(self.state.last or (yield from self.describe(0)), change)
        return partition, (yield from self.describe(self.home(partition)))

    def change(self, *change: Any) -> Steps[Any]:
        """Counts a change, in a call with others that wait. Returns its result."""
        state = self.state
        queue, entry = self.enter(state, state.last or (yield from self.describe(0)), change)
        while not entry.settled:
            yield Share(queue, queue.commit())
        return value_of(entry.result)

    def enter(self, state: State, description: Description, change: Any) -> tuple[Queue, Entry]:
        """Puts a change into its queue: that of its partition or, on a standalone server, of the family."""
        key = self.partition(description, change) if self.has_queue_per_partition or self.client.is_cluster else 0
        queue = state.queues.get(key)
        if queue is None:
            queue = state.queues.setdefault(key, Queue(self.limit, functools.partial(self._count, state, key)))
        entry = Entry(change)
        queue.waiting.append(entry)
        return queue, entry

    def encode(self, description: Description, groups: Iterable[tuple[int, list[Any]]]) -> Words:
        script, keys, args = "", [], self.first_args(description)
        for partition, changes in groups:
            script, own_keys, own_args = self.part(description, partition, changes)
            keys += own_keys
            args += own_args
        return script, keys, args

    def decode(self, status: bytes, words: list[Any], sizes: Iterable[int]) -> Iterable[Any]:
        """The result of each change, in the order of the call."""
        if status == b"DUP" and self.dup_names_refused:
            refused = dict(word.split(b":", 1) for word in words[0].split())
            return (_result(refused.get(b"%d" % number)) for number in range(1, sum(sizes) + 1))
        if status == b"DUP":
            words = words[0].split() if len(words) == 1 and isinstance(words[0], bytes) else words
        elif self.has_totals:
            for size in sizes:
                words = words[size + 1 :] + words[1 : size + 1]
        return map(_result, words)

    def _count(self, state: State, key: int, queue: Queue, changes: list[Any]) -> Steps[list[Any]]:
        """Makes one call of changes, and returns their results."""
        home, deadline = self.home(key), self.client.deadline()
        while True:
            description = state.fresh(home) or (yield from self.describe(home, deadline))
            groups = self._grouped(description, key, changes)
            script, keys, args = self.encode(description, [(one, [changes[at] for at in groups[one]]) for one in groups])
            caller, queue.n = queue.caller or secrets.token_hex(8), queue.n + 1
            queue.caller = ""  # a name whose call has no reply is dropped: the call may still arrive
            words = [caller, queue.n, description.now, "", *args]
            status, reply, was_lost = yield from self.send(script, self.keys(home, *CALLS) + keys, words, deadline)
            queue.caller = caller
            if status in (b"OK", b"DUP"):
                results = [*self.decode(status, reply, map(len, groups.values()))] or [None] * len(changes)
                order = [at for positions in groups.values() for at in positions]
                return [results[at] for at in sorted(range(len(order)), key=order.__getitem__)] if len(groups) > 1 else results
            if status == b"EXPIRED":
                state.described.pop(home, None)
            elif status == b"OUTSIDE":
                self.server_is_at(reply[0])
            is_first = not was_lost and (self.client.is_own or status == b"OUTSIDE")  # the only send, and nothing was done
            if status == b"PASSED" or not is_first or time.monotonic() > deadline:
                raise OutcomeUnknown(status.decode(), EXPLANATIONS.get(status.decode(), ""))

    def _grouped(self, description: Description, key: int, changes: list[Any]) -> dict[int, list[int]]:
        """The positions of changes by their partition, which is `key` in a queue of one partition."""
        groups: dict[int, list[int]] = {}
        for position, change in enumerate(changes):
            partition = self.partition(description, change)
            if partition != key and (self.has_queue_per_partition or self.client.is_cluster):
                if not description.settings.get("wide"):
                    raise Misconfigured("MISMATCH", f"{self.name} has another number of partitions now")
                partition = key
            groups.setdefault(partition, []).append(position)
        return groups

    def describe(self, home: int, deadline: float | None = None) -> Steps[Description]:
        """Asks Redis for the family and its current epoch, unless it did so less than 30 s ago."""
        state, start = self.state, time.monotonic()
        fresh = state.fresh(home)
        while not fresh:
            asked_at, last = time.monotonic(), state.last
            args = [self.kind, last.partitions if last else "", "", ""]
            try:
                status, words, _ = yield from self.send("family_epoch", self.keys(home, *CALLS), args, deadline)
            except OutcomeUnknown as error:
                raise NotCounted("no epoch", f"Redis did not describe {self.name}: {error}", temporary=True) from error
            if status == b"OK":
                fresh = state.last = Description(asked_at, words[0], words[1], int(words[3]), json.loads(words[4]))
                state.described[home] = fresh
                return fresh
            if status == b"MISMATCH":
                state.described, state.last = {}, None
                found = f"{words[0].decode()} with {int(words[1])} partitions"
                raise Misconfigured("MISMATCH", f"{self.name} is not the {self.kind} family that it was taken for, but {found}")
            if not last or time.monotonic() > start + min(self.client.retry_for, CONFIGURED_WITHIN_SECONDS):
                raise Misconfigured("UNCONFIGURED", f"{self.name}: " + EXPLANATIONS["UNCONFIGURED"])
            yield Sleep(PAUSE_SECONDS)
        return fresh

    def send(
        self, script: str, keys: list[bytes], args: Iterable[Any], deadline: float | None = None
    ) -> Steps[tuple[bytes, list[Any], bool]]:
        """Sends a call until there is a reply: the same call, which Redis executes once. Returns whether a reply was lost, too."""
        deadline = deadline or self.client.deadline()
        sha1, source = _redis.SCRIPTS[script]
        call = ("EVALSHA", sha1, len(keys), *keys, *args)
        was_lost = False
        while True:
            try:
                status, *words = yield Command(call, deadline)
                return status, words, was_lost
            except Exception as error:
                failure, code = error, _redis.code_of(error, self.client.is_own)
            if code == "NOSCRIPT":
                call = ("EVAL", source, *call[2:])
                continue
            was_lost = was_lost or code == _redis.LOST
            is_temporary = code in TEMPORARY or self.client.is_cluster and code in ("MOVED", "ASK")
            if code != _redis.LOST and not is_temporary:
                raise _refusal(code, failure, was_lost) from failure
            if time.monotonic() + PAUSE_SECONDS >= deadline:
                if was_lost:
                    raise OutcomeUnknown("no reply", str(failure)) from failure
                raise NotCounted(code, str(failure), temporary=True) from failure
            yield Sleep(PAUSE_SECONDS)

    def read(self, script: str, keys: list[bytes], args: Iterable[Any]) -> Steps[list[Any]]:
        """Makes a call that may be made any number of times."""
        try:
            status, words, _ = yield from self.send(script, keys, args)
        except OutcomeUnknown as error:
            raise NotCounted(error.reason, error.explanation, temporary=True) from error.__cause__
        return [status, *words]


@functools.lru_cache(1000)
def _keys(family: str, partition: int, *names: str) -> list[bytes]:
    return [f"cf1:{{{family}/{partition}}}:{name}".encode() for name in names]


def _refusal(code: str, error: Exception, was_lost: bool) -> CounterfoilError:
    """After a lost reply a refusal proves nothing about the earlier arrival."""
    explanation = EXPLANATIONS.get(code) or str(error)
    if was_lost or code not in NOT_COUNTED | MISCONFIGURED:
        return OutcomeUnknown(code, explanation)
    if code in MISCONFIGURED:
        return Misconfigured(code, explanation)
    return NotCounted(code, explanation, temporary=code in ("OOM", "MISCONF", "NOREPLICAS"))


def _result(word: Any) -> Any:
    """A number, the ticket of a miss, or the error of a word such as `FULL` or `RANGE:5`."""
    if not isinstance(word, bytes):
        return word
    reason, _, value = word.decode().partition(":")
    if reason == "MISS":
        return value
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
    return visitor if isinstance(visitor, bytes) and 0 < len(visitor) <= 255 else id_bytes(visitor)  # type: ignore[arg-type]


def integer(number: int, lowest: int = -(2**63)) -> int:
    """Checks a change or a value."""
    if not isinstance(number, int) or isinstance(number, bool) or not lowest <= number < 2**63:
        raise NotCounted("BADARG", f"expected an integer from {lowest} to {2**63 - 1}, not {number!r}")
    return number
