"""A family as Redis knows it, and what calls of all kinds have in common: epochs, callers, repeats."""

import json
import re
import secrets
import time
import zlib
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Tuple, Union

from . import _redis
from ._base import Base, D, Of
from ._errors import CounterfoilError, Misconfigured, NotCounted, OutcomeUnknown, value_of
from ._steps import Command, Entry, Queue, Sleep, Steps, settled

EPOCH_SECONDS = 30
PAUSE_SECONDS = 0.05
CONFIGURED_WITHIN_SECONDS = 3  # the daemon configures an emptied Redis again
ROUNDS = 10

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


class Description(NamedTuple):
    """The reply of family_epoch."""

    asked_at: float
    now: bytes
    before: bytes
    partitions: int
    settings: Dict[str, Any]


Words = Tuple[str, List[bytes], List[Any]]  # script, keys, arguments


class Reply(NamedTuple):
    status: bytes
    words: List[Any]
    was_lost: bool


class State:
    """What a process, or an event loop, knows of a family."""

    def __init__(self) -> None:
        self.described: Dict[int, Description] = {}
        self.last: Optional[Description] = None
        self.clock = time.time() - time.monotonic()
        self.queues: Dict[int, Queue] = {}

    def server_time(self) -> float:
        """The time of the server in Unix seconds; steps of this machine's clock do not matter."""
        return time.monotonic() + self.clock

    def server_is_at(self, now_ms: bytes) -> None:
        self.clock = int(now_ms) / 1000 - time.monotonic()


class Family(Of[D]):
    """A family. The class of each kind has its calls."""

    kind = ""
    limit = 1000  # changes of a call
    has_queue_per_partition = True

    def __init__(self, client: Base[D], name: str) -> None:
        super().__init__(client)
        self.name = f"{client.namespace}/{name}"
        if not re.fullmatch("[a-z0-9_.-]{1,64}/[a-z0-9_.-]{1,64}", self.name):
            raise Misconfigured("NAME", f"expected a namespace and a name of 1 to 64 characters a-z, 0-9, _, . and -, not {self.name}")

    @property
    def state(self) -> State:
        states: Dict[Any, State] = self.client.session.states
        return states.get((self.kind, self.name)) or states.setdefault((self.kind, self.name), State())

    def encode(self, description: Description, groups: Dict[int, List[Any]]) -> Words:
        """Makes a call of changes, which are grouped by partition."""
        raise NotImplementedError

    def decode(self, status: bytes, words: List[Any], groups: Dict[int, List[Any]]) -> List[Any]:
        """Returns the word of each change in a reply, in the order of the call."""
        raise NotImplementedError

    def partition(self, description: Description, change: Any) -> int:
        return zlib.crc32(change[0]) % description.partitions

    def keys(self, partition: int, *names: str) -> List[bytes]:
        prefix = f"cf1:{{{self.name}/{partition}}}:"
        return [(prefix + name).encode() for name in names]

    def home(self, partition: int) -> int:
        """The partition whose memory has the calls of `partition`."""
        return partition if self.client.is_cluster else 0

    def described(self, *change: Any) -> Steps[Tuple[int, Description]]:
        """The partition of a change, and a fresh description of the family."""
        partition = self.partition(self.state.last or (yield from self.describe(0)), change)
        return partition, (yield from self.describe(self.home(partition)))

    def change(self, *change: Any) -> Steps[Any]:
        """Counts a change, in a call with others that wait. Returns its result."""
        queue, entry = yield from self.enter(*change)
        yield from settled({queue: entry})
        return value_of(entry.result)

    def enter(self, *change: Any) -> Steps[Tuple[Queue, Entry]]:
        """Puts a change into its queue: that of its partition or, on a standalone server, of the family."""
        state, key = self.state, 0
        if self.has_queue_per_partition or self.client.is_cluster:
            key = self.partition(state.last or (yield from self.describe(0)), change)
        queue = state.queues.get(key)
        if queue is None:
            queue = state.queues.setdefault(key, Queue(self.limit, lambda queue, changes: self._count(queue, key, changes)))
        entry = Entry(change)
        queue.waiting.append(entry)
        return queue, entry

    def _count(self, queue: Queue, key: int, changes: List[Any]) -> Steps[List[Any]]:
        """Makes one call of changes, and returns their results."""
        state, home, deadline = self.state, self.home(key), self.client.deadline()
        while True:
            description = yield from self.describe(home, deadline)
            order: Dict[int, List[int]] = {}
            for position, change in enumerate(changes):
                partition = self.partition(description, change)
                if partition != key and (self.has_queue_per_partition or self.client.is_cluster):
                    if not description.settings.get("wide"):
                        raise Misconfigured("MISMATCH", f"{self.name} has another number of partitions now")
                    partition = key
                order.setdefault(partition, []).append(position)
            groups = {partition: [changes[position] for position in positions] for partition, positions in order.items()}
            script, keys, args = self.encode(description, groups)
            queue.caller = queue.caller or secrets.token_hex(8)
            queue.n += 1
            words = [queue.caller, queue.n, description.now, "", *args]  # guard: caller
            caller, queue.caller = queue.caller, ""  # a name whose call has no reply is dropped: the call may still arrive
            status, reply, was_lost = yield from self.send(script, self.keys(home, "calls", "calls_before") + keys, words, deadline)
            queue.caller = caller
            if status in (b"OK", b"DUP"):
                results: List[Any] = [None] * len(changes)
                positions = (position for positions in order.values() for position in positions)
                for position, word in zip(positions, self.decode(status, reply, groups)):
                    results[position] = result_of(word)
                return results
            if status == b"EXPIRED":
                state.described.pop(home, None)
            elif status == b"OUTSIDE":
                state.server_is_at(reply[0])
            is_first = not was_lost and (self.client.is_own or status == b"OUTSIDE")  # and nothing was done  # guard: epoch
            if status == b"PASSED" or not is_first or time.monotonic() > deadline:
                raise OutcomeUnknown(status.decode(), EXPLANATIONS.get(status.decode(), ""))

    def describe(self, home: int, deadline: Optional[float] = None) -> Steps[Description]:
        """Asks Redis for the family and its current epoch, unless it did so less than 30 s ago."""
        state, start = self.state, time.monotonic()
        known = state.described.get(home)
        if known and start < known.asked_at + EPOCH_SECONDS:
            return known
        while True:
            asked_at, last = time.monotonic(), state.last
            args = [self.kind, last.partitions if last else "", "", ""]
            try:
                status, words, _ = yield from self.send("family_epoch", self.keys(home, "calls", "calls_before"), args, deadline)
            except OutcomeUnknown as error:
                raise NotCounted("no epoch", f"Redis did not describe {self.name}: {error}", temporary=True) from error
            if status == b"OK":
                state.last = Description(asked_at, words[0], words[1], int(words[3]), json.loads(words[4]))
                state.described[home] = state.last
                return state.last
            if status == b"MISMATCH":
                state.described, state.last = {}, None
                found = f"{words[0].decode()} with {int(words[1])} partitions"
                raise Misconfigured("MISMATCH", f"{self.name} is not the {self.kind} family that it was taken for, but {found}")
            if not last or time.monotonic() > start + min(self.client.retry_for, CONFIGURED_WITHIN_SECONDS):
                raise Misconfigured("UNCONFIGURED", f"{self.name}: " + EXPLANATIONS["UNCONFIGURED"])
            yield Sleep(PAUSE_SECONDS)

    def send(self, script: str, keys: List[bytes], args: Iterable[Any], deadline: Optional[float] = None) -> Steps[Reply]:
        """Sends a call until there is a reply: the same call, which Redis executes once."""
        deadline = deadline or self.client.deadline()
        sha1, source = _redis.SCRIPTS[script]
        call = ("EVALSHA", sha1, len(keys), *keys, *args)
        was_lost = False
        while True:
            try:
                status, *words = yield Command(call)
                return Reply(status, words, was_lost)
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

    def read(self, script: str, keys: List[bytes], args: Iterable[Any]) -> Steps[List[Any]]:
        """Makes a call that may be made any number of times."""
        try:
            status, words, _ = yield from self.send(script, keys, args)
        except OutcomeUnknown as error:
            raise NotCounted(error.reason, error.explanation, temporary=True) from error.__cause__
        return [status, *words]


def _refusal(code: str, error: Exception, was_lost: bool) -> CounterfoilError:
    """After a lost reply a refusal proves nothing about the earlier arrival."""
    explanation = EXPLANATIONS.get(code) or str(error)
    if was_lost or code not in NOT_COUNTED | MISCONFIGURED:
        return OutcomeUnknown(code, explanation)
    if code in MISCONFIGURED:
        return Misconfigured(code, explanation)
    return NotCounted(code, explanation, temporary=code in ("OOM", "MISCONF", "NOREPLICAS"))


def result_of(word: Any) -> Any:
    """A number, the ticket of a miss, or the error of a word such as `FULL` or `RANGE:5`."""
    if not isinstance(word, bytes):
        return word
    reason, _, value = word.decode().partition(":")
    if reason == "MISS":
        return value
    return NotCounted(reason, value=int(value) if value else None) if reason.isalpha() else int(word)


def refusals(words: List[Any], groups: Dict[int, List[Any]]) -> List[Optional[bytes]]:
    """What `DUP` says of each change, e.g. `3:FULL 7:RANGE`."""
    refused = dict(word.split(b":", 1) for word in words[0].split())
    return [refused.get(b"%d" % number) for number in range(1, sum(map(len, groups.values())) + 1)]


def id_bytes(id: str, limit: int = 255) -> bytes:
    """Checks an id, a name or a page."""
    try:
        word = id.encode()
    except (AttributeError, UnicodeEncodeError):
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
