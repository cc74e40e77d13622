"""A family as Redis knows it, and what calls of all kinds have in common: epochs, callers, repeats."""

import json
import random
import re
import secrets
import time
import zlib
from collections import deque
from typing import Any, Callable, Deque, Dict, Hashable, Iterable, List, Mapping, NamedTuple, Optional, Tuple, Type, TypeVar, Union

from . import _redis
from ._errors import CounterfoilError, Misconfigured, NotCounted, OutcomeUnknown
from ._scripts import SCRIPTS
from ._steps import Command, Queue, Sleep, Steps

EPOCH_SECONDS = 30
PAUSE_SECONDS = 0.05
CONFIGURED_WITHIN_SECONDS = 3  # the daemon configures an emptied Redis again

TEMPORARY = {"LOADING", "BUSY", "CLUSTERDOWN", "MASTERDOWN", "TRYAGAIN", "READONLY", _redis.NOT_SENT}
NOT_COUNTED = {"OOM", "MISCONF", "NOREPLICAS", "WRONGTYPE", "BADSTATE"}
MISCONFIGURED = {"NOAUTH", "BADARG", "BADKEY", "CROSSSLOT", "MOVED", "ASK"}
EXPLANATIONS = {
    "CROSSSLOT": "the server is a cluster, use RedisCluster",
    "MOVED": "the server is a cluster, use RedisCluster",
    "BADKEY": "the client adds a prefix to keys, or changes them in another way",
    "UNCONFIGURED": "declare it as [[family]] in the daemon's counterfoil.toml and start the daemon (`counterfoil init` creates "
    "the tables once); or the name or the number of the Redis database is wrong, or Redis was emptied",
    "EXPIRED": "Redis no longer knows this call: it lost its memory, or the call took too long",
    "OUTSIDE": "the call took too long, and belongs to a slice of time that is over",
    "PASSED": "two processes use one caller name",
}


F = TypeVar("F", bound="Family")


class Caller:
    """A name under which one call at a time is made; `n` grows with each."""

    __slots__ = ("name", "n")

    def __init__(self) -> None:
        self.name = secrets.token_hex(8)
        self.n = 0


class Description(NamedTuple):
    """The reply of family_epoch."""

    asked_at: float
    now: bytes
    before: bytes
    partitions: int
    settings: Dict[str, Any]


class Call(NamedTuple):
    """A counting call without the keys and arguments that all kinds share."""

    script: str
    keys: List[bytes]
    args: List[Any]


class Reply(NamedTuple):
    status: bytes
    words: List[Any]
    was_lost: bool


class Options(NamedTuple):
    """What a client was made with. `connect` makes its own client, if none was given."""

    namespace: str
    client: Any
    connect: Optional[Callable[[], Any]]
    is_cluster: bool
    retry_for: float
    later_every: float
    sources: Any

    def checked(self) -> "Options":
        checked_name(self.namespace)
        if not 0 < self.retry_for <= EPOCH_SECONDS:
            raise Misconfigured("OPTION", f"retry_for is up to {EPOCH_SECONDS} seconds, not {self.retry_for!r}")
        if not 0 < self.later_every <= 60:
            raise Misconfigured("OPTION", f"later_every is up to 60 seconds, not {self.later_every!r}")
        return self


class Session:
    """What belongs to one process, or to one event loop, and starts anew in another: callers, sums, what is under way."""

    def __init__(self, options: Options, guard: Callable[[], Any]) -> None:
        self.namespace = options.namespace
        self.is_cluster = options.is_cluster
        self.own = options.connect is not None
        self.retry_for = options.retry_for
        self.sources = options.sources
        self.guard = guard
        self.laters: List[Any] = []
        self._families: Dict[Hashable, Any] = {}

    def family(self, kind: Type[F], name: str, options: Mapping[str, Any]) -> F:
        key = (kind, name, *options.values())
        family = self._families.get(key)
        if family is None:
            family = self._families.setdefault(key, kind(self, name, **options))
        return family  # type: ignore[no-any-return]


class Family:
    """One family; the subclass of each kind has its calls."""

    kind = ""

    def __init__(self, session: Session, name: str) -> None:
        self.session = session
        self.name = name
        self.full_name = f"{session.namespace}/{name}"
        self._described: Dict[int, Description] = {}
        self._last: Optional[Description] = None
        self._clock = time.time() - time.monotonic()
        self._queues: Dict[int, Queue] = {}
        self._callers: Deque[Caller] = deque()

    def keys(self, partition: int, *names: str) -> List[bytes]:
        prefix = f"cf1:{{{self.full_name}/{partition}}}:"
        return [(prefix + name).encode() for name in names]

    def home(self, partition: int) -> int:
        """The partition whose memory has the calls of `partition`."""
        return partition if self.session.is_cluster else 0

    def partition(self, word: bytes) -> Steps[int]:
        """The partition of an id, by what Redis said last."""
        last = self._last or (yield from self.describe(0))
        return zlib.crc32(word) % last.partitions

    def located(self, word: bytes) -> Steps[Tuple[int, Description]]:
        """The partition of an id, and a fresh description of the family."""
        partition = yield from self.partition(word)
        return partition, (yield from self.describe(self.home(partition)))

    def grouped(self, description: Description, ids: Iterable[bytes], expected: Optional[int]) -> Dict[int, List[int]]:
        """The positions of ids by partition, which is `expected` for all of them if they came by the queue of a partition."""
        partitions, is_wide = description.partitions, description.settings.get("wide")
        groups: Dict[int, List[int]] = {}
        for position, id in enumerate(ids):
            partition = random.randrange(partitions) if is_wide else zlib.crc32(id) % partitions
            if expected not in (None, partition):
                if not is_wide or expected >= partitions:
                    raise self.changed()
                partition = expected
            groups.setdefault(partition, []).append(position)
        return groups

    def changed(self) -> Misconfigured:
        return Misconfigured("MISMATCH", f"{self.full_name} has another number of partitions now")

    def server_time(self) -> float:
        """The time of the server in Unix seconds, as far as it is known; steps of this machine's clock do not matter."""
        return time.monotonic() + self._clock

    def server_is_at(self, now_ms: bytes) -> None:
        self._clock = int(now_ms) / 1000 - time.monotonic()

    def queue(self, home: int, limit: int, call: Callable[[List[Any]], Steps[List[Any]]]) -> Queue:
        queue = self._queues.get(home)
        return queue or self._queues.setdefault(home, Queue(limit, call, self.session.guard()))

    def describe(self, home: int, deadline: Optional[float] = None) -> Steps[Description]:
        """Asks Redis for the family and its current epoch, unless it did so less than 30 s ago."""
        known = self._described.get(home)
        start = time.monotonic()
        if known and start < known.asked_at + EPOCH_SECONDS:
            return known
        while True:
            asked_at, last = time.monotonic(), self._last
            args = [self.kind, last.partitions if last else "", "", ""]
            try:
                reply = yield from self.send("family_epoch", self.keys(home, "calls", "calls_before"), args, deadline)
            except OutcomeUnknown as error:
                raise NotCounted("no epoch", f"Redis did not describe {self.full_name}", temporary=True) from error
            if reply.status == b"OK":
                now, before, _, partitions, settings = reply.words
                description = Description(asked_at, now, before, int(partitions), json.loads(settings))
                self._described[home] = self._last = description
                return description
            waited = time.monotonic() - start
            if reply.status == b"MISMATCH":
                self._described, self._last = {}, None
                found = f"{reply.words[0].decode()} with {int(reply.words[1])} partitions"
                raise Misconfigured("MISMATCH", f"{self.full_name} is not the {self.kind} family that it was taken for, but {found}")
            if not last or waited > min(self.session.retry_for, CONFIGURED_WITHIN_SECONDS):
                raise Misconfigured("UNCONFIGURED", f"{self.full_name}: " + EXPLANATIONS["UNCONFIGURED"])
            yield Sleep(PAUSE_SECONDS)

    def forget(self, home: int) -> None:
        self._described.pop(home, None)

    def send(self, script: str, keys: List[bytes], args: Iterable[Any], deadline: Optional[float] = None) -> Steps[Reply]:
        """Sends a call until there is a reply: the same call, which Redis executes once."""
        if deadline is None:
            deadline = time.monotonic() + self.session.retry_for
        sha1, source = SCRIPTS[script]
        call = ("EVALSHA", sha1, len(keys), *keys, *args)
        was_lost = False
        while True:
            try:
                status, *words = yield Command(call)
                return Reply(status, words, was_lost)
            except CounterfoilError:
                raise
            except Exception as error:
                code = _redis.code_of(error, self.session.own)
                if code == "NOSCRIPT":
                    call = ("EVAL", source, *call[2:])
                    continue
                is_temporary = code in TEMPORARY or self.session.is_cluster and code in ("MOVED", "ASK")
                if code != _redis.LOST and not is_temporary:
                    raise _refusal(code, error, was_lost) from error
                was_lost = was_lost or code == _redis.LOST
                failure = error
            if time.monotonic() + PAUSE_SECONDS >= deadline:
                if was_lost:
                    raise OutcomeUnknown("no reply", str(failure)) from failure
                raise NotCounted(code, str(failure), temporary=True) from failure
            yield Sleep(PAUSE_SECONDS)

    def count(self, home: int, call: Callable[[Description], Call]) -> Steps[Reply]:
        """Makes a counting call once; `call` makes its words from what Redis said of the family."""
        deadline = time.monotonic() + self.session.retry_for
        try:
            caller = self._callers.pop()
        except IndexError:
            caller = Caller()
        while True:
            description = yield from self.describe(home, deadline)
            script, keys, args = call(description)
            caller.n += 1
            words = [caller.name, caller.n, description.now, "", *args]
            reply = yield from self.send(script, self.keys(home, "calls", "calls_before") + keys, words, deadline)
            if reply.status == b"PASSED":
                raise _unknown("PASSED")
            if reply.status in (b"OK", b"DUP"):
                self._callers.append(caller)  # a name whose call had no reply is dropped: the call may still arrive
                return reply
            is_sure = not reply.was_lost and time.monotonic() < deadline
            if reply.status == b"EXPIRED":
                self.forget(home)
                is_sure = is_sure and self.session.own  # this was the first and only time that the call was sent
            else:
                self.server_is_at(reply.words[0])  # OUTSIDE: nothing was done
            if not is_sure:
                raise _unknown(reply.status.decode())

    def read(self, script: str, keys: List[bytes], args: Iterable[Any]) -> Steps[List[Any]]:
        """Makes a call that only reads, or that may be made any number of times."""
        try:
            reply = yield from self.send(script, keys, args)
        except OutcomeUnknown as error:
            raise NotCounted(error.reason, error.explanation, temporary=True) from error.__cause__
        return [reply.status, *reply.words]


def _refusal(code: str, error: Exception, was_lost: bool) -> CounterfoilError:
    explanation = EXPLANATIONS.get(code) or str(error)
    if was_lost or code not in NOT_COUNTED | MISCONFIGURED:
        return OutcomeUnknown(code, explanation)
    if code in NOT_COUNTED:
        return NotCounted(code, explanation, temporary=code in ("OOM", "MISCONF", "NOREPLICAS"))
    return Misconfigured(code, explanation)


def _unknown(reason: str) -> OutcomeUnknown:
    return OutcomeUnknown(reason, EXPLANATIONS[reason])


def refused(word: bytes) -> NotCounted:
    """The error for a word in place of a result: `FULL`, or `RANGE:5` with the value."""
    reason, _, value = word.decode().partition(":")
    return NotCounted(reason, value=int(value) if value else None)


def checked_name(name: str) -> str:
    if not isinstance(name, str) or not re.fullmatch("[a-z0-9_.-]{1,64}", name):
        raise Misconfigured("NAME", f"expected a name of 1 to 64 characters a-z, 0-9, _, . and -, not {name!r}")
    return name


def id_bytes(id: str, limit: int = 255) -> bytes:
    """Checks an id, a name or a page."""
    try:
        word = id.encode() if isinstance(id, str) else b""
    except UnicodeEncodeError:
        word = b""
    if not 0 < len(word) <= limit:
        raise NotCounted("BADID", f"expected a str of 1 to {limit} bytes, not {id!r}")
    return word


def visitor_bytes(visitor: Union[str, bytes]) -> bytes:
    return visitor if isinstance(visitor, bytes) and 0 < len(visitor) <= 255 else id_bytes(visitor)  # type: ignore[arg-type]


def integer(number: int, lowest: int = -(2**63)) -> int:
    """Checks a change or a value."""
    if not isinstance(number, int) or isinstance(number, bool) or not lowest <= number < 2**63:
        raise NotCounted("BADARG", f"expected an integer from {lowest} to {2**63 - 1}, not {number!r}")
    return number


def in_order(groups: Dict[int, List[int]], results: List[Any]) -> List[Any]:
    """Puts results in the order of the call into that of the changes."""
    ordered: List[Any] = [None] * len(results)
    for position, result in zip((position for positions in groups.values() for position in positions), results):
        ordered[position] = result
    return ordered
