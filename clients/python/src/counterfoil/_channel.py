"""The calls of a family: epochs, callers, repeats."""

from __future__ import annotations

import json
import os
import re
import secrets
import time
from asyncio import CancelledError
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, List, NamedTuple, Optional, Tuple

from redis.exceptions import RedisClusterException

from ._errors import CounterfoilError, Misconfigured, NotCounted, OutcomeUnknown, unconfigured, value_of
from ._outage import PROBE_SECONDS, Outage
from ._redis import CONNECTING, FAILURES, LOST, NOT_COUNTED, NOT_SENT, OUTAGE, REPEATED, SHA1, SOURCES
from ._redis import Command, code_of, refusal
from ._results import results_of
from ._sums import Sums

EPOCH_SECONDS = 30
PAUSE_SECONDS = 0.05
CONFIGURED_WITHIN_SECONDS = 3
WANTED_SECONDS = 0.2  # the interval at which the daemon takes the names of wanted families
WANTED = ("cf1:wanted",)
REDIS = "Redis"  # the key of the outage of a server or a whole cluster; that of a partition is its family and home
CALLS = "calls", "calls_before"
REQUESTS = "requests", "requests_before"
Call = Tuple[Any, ...]  # words of a command
Keys = Tuple[str, ...]
Words = Tuple[str, Keys, List[Any]]  # script, keys, arguments
Reply = Tuple[bytes, List[Any], bool]  # status, words, whether an earlier reply was lost
Request = Tuple[str, Optional[str]]  # its name, and the generation that a job stored
ROUNDS = 10
MAX_N = 2**53  # the largest number of a call
# Numbers grow by random steps. Two machines that were resumed from one snapshot share the names of callers, and so
# most likely use different numbers.
MAX_STEP = 2**20


class Description(NamedTuple):
    """A reply of family_epoch: the settings of a family, and the current epoch of a home."""

    asked_at: float
    now: bytes
    generation: bytes  # the generation of requests
    partitions: int
    settings: dict[str, Any]
    ids: re.Pattern[str]

    def check(self, id: str) -> str:
        """Returns the id. Refuses one that can have no row."""
        if self.ids.fullmatch(id):
            return id
        raise NotCounted("BADID", f"{id!r} can have no row, expected {self.settings['ids_in_words']}")


class Queue:
    """Group commit: one call at a time is under way, and the changes that arrive meanwhile share the next one."""

    def __init__(self, home: int, partitions: int) -> None:
        self.home, self.partitions = home, partitions
        self.waiting: list[Entry] = []
        self.batch: list[Entry] = []  # the entries of the call under way
        self.call: Call = ()
        self.caller, self.n = "", 0


@dataclass(eq=False)
class Entry:
    """A change for a queue. The `result`, a value or an error, is set when it is `settled`."""

    queue: Any
    partition: int
    change: Any
    deadline: float
    result: Any = None
    settled: bool = False
    is_alone: bool = False  # it needs a call of its own, because a call with others was refused
    request: Request | None = None


class Channel:
    """The calls of a family in one session, and what is known of the family there."""

    def __init__(self, family: Any, session: Any) -> None:
        self.family, self.session, self.client = family, session, session.client
        self.sums = Sums(self)
        self.descriptions: dict[int, Description] = {}
        self._last: Description | None = None
        self._queues: dict[tuple[int, int], Queue] = {}

    def home(self, partition: int) -> int:
        """Returns the partition that remembers the calls of `partition`."""
        return partition if self.client.is_cluster else 0

    def outage(self) -> CounterfoilError | None:
        """Returns the error of all calls during an outage of Redis, or None."""
        outage: Outage | None = self.session.outage(REDIS)
        return outage.error() if outage else None

    async def known(self, deadline: float) -> Any:
        """Returns the last description of the family, or the error if there is none."""
        try:
            return self._last or await self.describe(0, deadline)
        except CounterfoilError as error:
            return error

    async def described(self, deadline: float, *change: Any) -> tuple[int, Description]:
        """Returns the partition of a change, and a fresh description of the family."""
        known = value_of(await self.known(deadline))
        partition = self.family.partition(known, self.family.checked(known, change))
        return partition, await self.describe(self.home(partition), deadline)

    def check_known(self, change: Any) -> None:
        """Refuses an id that can have no row, as far as this is known without waiting."""
        if self._last:
            self.family.checked(self._last, change)

    async def describe(self, home: int, deadline: float) -> Description:
        """Returns the family and its current epoch, as Redis replied less than 30 s ago. Callers share a call."""
        while True:
            known = self.descriptions.get(home)
            if known and time.monotonic() < known.asked_at + EPOCH_SECONDS:
                return known
            try:
                await self.session.share((self, home), deadline, self.ask, home, deadline)
            except CounterfoilError as error:  # perhaps of another caller, whose deadline was earlier
                if error.reason not in REPEATED - OUTAGE or time.monotonic() + PAUSE_SECONDS >= deadline:
                    raise

    async def ask(self, home: int, deadline: float) -> Description:
        """Asks Redis for the family and its current epoch. Waits for a while if no daemon has configured the family."""
        configured_by = min(deadline, time.monotonic() + CONFIGURED_WITHIN_SECONDS)
        while True:
            asked_at, last = time.monotonic(), self._last
            script, keys, args = self._question(home, last.partitions if last else "")
            status, *words = await self.read(script, home, keys, args, deadline)
            if status == b"OK":
                settings = json.loads(words[4])
                ids = re.compile(settings["ids"])
                self._last = Description(asked_at, words[0], words[1], int(words[3]), settings, ids)
                self.descriptions[home] = self._last
                return self._last
            if status == b"MISMATCH":
                self.descriptions, self._last = {}, None
                kind, own = words[0].decode(), self.family.kind
                found = f"{kind}, not {own}" if kind != own else f"of {int(words[1])} partitions now"
                raise Misconfigured("MISMATCH", f"{self.family.name} is {found}")
            if any(words):
                raise Misconfigured("UNCONFIGURED", f"the daemon refuses {self.family.name}: {words[0].decode()}")
            why = await self._announce(home, deadline)
            if time.monotonic() + WANTED_SECONDS > configured_by:
                error = unconfigured(self.family.name, why)
                outage = Outage(error, partial(self._is_configured, home))
                self.session.begin_outage((self.family.name, home), outage)
                raise error
            await self.session.sleep(WANTED_SECONDS)

    async def _announce(self, home: int, deadline: float) -> str:
        """Announces the family to the daemon, whose configuration may have a pattern for it. Returns why that failed,
        or an empty text."""
        try:
            status, *_ = await self.read("family_want", home, WANTED, [self.family.name], deadline)
        except CounterfoilError as error:
            return f"it was not asked for: {error}"
        return "" if status == b"OK" else f"it was not asked for: {WANTED[0]} is full"

    def _question(self, home: int, partitions: int | str = "") -> Words:
        keys = self.family.keys(home, *CALLS, *REQUESTS)
        return "family_epoch", keys, [self.family.kind, partitions, "", ""]

    async def _has_reply(self, home: int) -> bool:
        """Asks once for the epoch, and returns whether an outage of Redis is over."""
        return await self._probe(*self._question(home)) is not None

    async def _is_configured(self, home: int) -> bool:
        """Announces the family and asks once for it, and returns whether a call should ask again."""
        await self._probe("family_want", WANTED, [self.family.name])
        status, *words = await self._probe(*self._question(home)) or [b"UNCONFIGURED"]
        return status != b"UNCONFIGURED" or any(words)

    async def _probe(self, *words: Any) -> Any:
        """Sends a call once. Returns its reply, the code of an error that Redis replied, or None without a reply."""
        try:
            return await self.session.execute(words_of(*words), time.monotonic() + PROBE_SECONDS)
        except FAILURES as error:
            code = code_of(error, self.client.is_cluster)
            return None if code in OUTAGE else [code]

    def check_partitions(self, description: Description, partitions: int) -> None:
        if description.partitions != partitions:
            raise Misconfigured("MISMATCH", f"{self.family.name} has another number of partitions now")

    async def read(self, script: str, home: int, keys: Keys, args: list[Any], deadline: float) -> list[Any]:
        """Makes a call that may be made any number of times. Returns status and words."""
        try:
            status, words, _ = await self.send(words_of(script, keys, args), home, deadline)
        except OutcomeUnknown as error:
            is_temporary = error.reason in REPEATED | NOT_COUNTED
            kind = NotCounted if is_temporary else Misconfigured
            raise kind(error.reason, error.explanation, temporary=is_temporary) from error.__cause__
        return [status, *words]

    async def read_of_home(
        self, script: str, partition: int, names: Keys, keys: Keys, arg: Any, deadline: float
    ) -> list[Any]:
        """Makes a read that needs the settings at the home of a partition's calls, and returns the words after OK."""
        home = self.home(partition)
        keys = self.family.keys(home, "calls", *names) + keys
        for _ in range(ROUNDS):
            status, *words = await self.read(script, home, keys, [arg, ""], deadline)
            if status != b"MISMATCH":
                break
            self.descriptions.pop(home, None)  # Redis was emptied, or the settings have changed
            await self.describe(home, deadline)
            await self.session.sleep(PAUSE_SECONDS)
        if status == b"OK":
            return words
        raise NotCounted(status.decode(), temporary=status == b"NOCALENDAR")

    async def send(self, call: Call, home: int, deadline: float, was_lost: bool = False) -> Reply:
        """Sends a call, and the same call again until there is a reply. Redis executes it once.

        `was_lost`: an earlier send may have been executed. The reply returns it as it is after the last send."""
        place = self.family.name, home
        while True:
            if outage := self.session.outage(REDIS) or self.session.outage(place):
                raise outage.error(was_lost)
            if self.session.pid != os.getpid():  # a fork copies tasks and greenlets, which the parent continues
                raise CancelledError("this caller is of the parent process")
            before = call[0].sends
            try:
                status, *words = await self.session.execute(call, deadline)
                sends = call[0].sends - before
                self.client.shows_sends = sends > 0
                return status, words, was_lost or sends != 1
            except FAILURES as error:
                failure, code = error, code_of(error, self.client.is_cluster)
            sends = call[0].sends - before
            # the cluster client of an application may have sent the call to one node before another one refused it
            is_other = self.client.is_cluster and not self.client.is_own and code in CONNECTING
            if sends == 1:
                was_lost = was_lost or code == LOST or is_other
            else:
                was_lost = was_lost or sends > 1 or not self.client.shows_sends
            if code == "NOSCRIPT":
                call = (Command("EVAL"), SOURCES[call[1]], *call[2:])
                continue
            if code == LOST and not sends and self.client.shows_sends:
                code = NOT_SENT
            ends_at = min(deadline, self.session.ends_at)
            is_last = time.monotonic() + PAUSE_SECONDS + self.client.attempt_seconds >= ends_at
            if code not in REPEATED or is_last:
                refused = refusal(code, failure, was_lost)
                refused.__cause__ = failure
                if code in OUTAGE:
                    is_whole = not self.client.is_cluster or isinstance(failure, RedisClusterException)
                    outage = Outage(refused, partial(self._has_reply, home), "Redis")
                    self.session.begin_outage(REDIS if is_whole else place, outage)
                raise refused
            await self.session.sleep(PAUSE_SECONDS)

    async def change(self, *change: Any, request: Request | None = None, deadline: float = 0) -> Any:
        """Counts a change, in a call with others that wait. Returns its result."""
        deadline = deadline or self.client.deadline()
        for _ in range(ROUNDS):
            [result] = await self.change_all([change], request, deadline)
            is_outdated = isinstance(result, NotCounted) and result.reason == "MISMATCH"
            if not is_outdated or not result.temporary:
                break
        return value_of(result)

    async def request_epoch(self, request: str, id: str) -> str:
        """Returns the current generation of requests. A job that runs later needs the one that Redis has now, so it is
        never taken from memory."""
        deadline = self.client.deadline()
        known = value_of(await self.known(deadline))
        partition = self.family.partition(known, (known.check(id),), (request, None))
        return (await self.ask(self.home(partition), deadline)).generation.decode()

    async def change_all(
        self, changes: list[Any], request: Request | None = None, deadline: float = 0
    ) -> list[Any]:
        """Counts changes, and returns the result of each. An error in place of a change is its result."""
        deadline = deadline or self.client.deadline()
        known = await self.known(deadline)
        entries = [self.enter(known, change, deadline, request) for change in changes]
        try:
            return await self.settle(entries)
        except CancelledError:  # only in an event loop, whose queues no other thread changes
            for entry in entries:
                if not entry.settled:
                    with suppress(ValueError):  # it may have been sent
                        entry.queue.waiting.remove(entry)
            raise

    def enter(self, known: Any, change: Any, deadline: float, request: Request | None = None) -> Entry:
        """Makes the entry of a change. Each partition has a queue, or where a call may span several partitions, all
        share one."""
        for error in (change, known):
            if isinstance(error, CounterfoilError):
                return Entry(None, 0, change, deadline, error, settled=True)
        try:
            change = self.family.checked(known, change)
        except CounterfoilError as error:
            return Entry(None, 0, change, deadline, error, settled=True)
        partition = self.family.partition(known, change, request)
        number = 0 if self.family.spans_partitions and not self.client.is_cluster else partition
        key = number, known.partitions
        queue = self._queues.get(key) or self._queues.setdefault(key, Queue(self.home(number), key[1]))
        return Entry(queue, partition, change, deadline, request=request)

    async def settle(self, entries: list[Entry]) -> list[Any]:
        """Puts entries into their queues, and makes calls until all are counted, or waits for the caller that
        does so. Returns their results. Several callers may settle the same entries, also after an interrupt."""
        for entry in entries:
            if not entry.settled:
                entry.queue.waiting.append(entry)
        for entry in entries:
            while not entry.settled:
                await self.session.share(entry.queue, None, self._commit, entry.queue)
        return [entry.result for entry in entries]

    async def _commit(self, queue: Queue) -> None:
        """Makes one call of the changes that wait, or repeats the one that an interrupted caller left."""
        if not queue.batch:
            queue.call = ()  # an interrupt may have left the call of the previous batch
            is_alone = queue.waiting and queue.waiting[0].is_alone
            waiting = queue.waiting[: 1 if is_alone else self.family.limit]
            batch = [entry for entry in dict.fromkeys(waiting) if not entry.settled]
            queue.batch = sorted(batch, key=lambda entry: entry.partition)
            del queue.waiting[: len(waiting)]
        try:
            results = await self._count(queue) if queue.batch else []
        except CounterfoilError as error:
            queue.caller = ""  # this call may still arrive, or another process use the name
            if len(queue.batch) > 1 and isinstance(error, NotCounted) and not error.temporary:
                for entry in queue.batch:  # a single entry may be the reason, so each gets a call of its own
                    entry.is_alone = True
                queue.waiting[:0], queue.batch = queue.batch, []
                return
            results = [error] * len(queue.batch)
        for entry, result in zip(queue.batch, results):
            entry.result, entry.settled = result, True
        queue.batch = []

    async def _count(self, queue: Queue) -> list[Any]:
        """Makes the call of a batch, and returns its results."""
        deadline, was_interrupted = max(entry.deadline for entry in queue.batch), bool(queue.call)
        if time.monotonic() >= deadline and not was_interrupted:
            raise NotCounted(NOT_SENT, "no time was left to send it", temporary=True)
        parts: dict[int, list[Any]] = {}
        for entry in queue.batch:
            parts.setdefault(entry.partition, []).append(entry.change)
        while True:
            description = await self.describe(queue.home, deadline)
            queue.call = queue.call or self._call(queue, parts, description)
            status, words, was_lost = await self.send(queue.call, queue.home, deadline, was_interrupted)
            if status in (b"OK", b"DUP"):
                results = self._results(parts, words, description)
                if any(isinstance(result, OutcomeUnknown) for result in results):
                    self.descriptions.pop(queue.home, None)  # there is another generation
                return results
            if status == b"EXPIRED":
                self.descriptions.pop(queue.home, None)
            elif status == b"MISMATCH":
                self.descriptions, self._last = {}, None
            is_first = not was_lost  # no earlier send may have been executed, and this one was refused
            if status == b"PASSED" or not is_first or time.monotonic() > deadline:
                raise OutcomeUnknown(status.decode())
            queue.call = ()
            if status == b"MISMATCH":  # the changes may belong to other partitions now
                raise NotCounted("MISMATCH", temporary=True)

    def _results(self, parts: dict[int, list[Any]], words: list[Any], description: Description) -> list[Any]:
        """Returns the result of each change. Changes may share a word of the reply, as the visitors of a page do."""
        shared = [self.family.shared(description.settings, changes) for changes in parts.values()]
        sizes = [max(numbers) + 1 for numbers in shared]
        results, first = results_of(words, sizes), 0
        all_results: list[Any] = []
        for numbers, size in zip(shared, sizes):
            all_results += [results[first + number] for number in numbers]
            first += size
        return all_results

    def _call(self, queue: Queue, parts: dict[int, list[Any]], description: Description) -> Call:
        self.check_partitions(description, queue.partitions)
        if not queue.caller or queue.n > MAX_N - MAX_STEP:
            queue.caller, queue.n = secrets.token_hex(8), 0
        queue.n += 1 + secrets.randbelow(MAX_STEP)
        settings, keys = description.settings, self.family.keys(queue.home, *CALLS)
        requests: list[Any] = []
        for number, entry in enumerate(queue.batch, 1):
            if entry.request:
                requests += [number, entry.request[0], entry.request[1] or description.generation]
        first = self.family.first_args(settings, len(requests) // 3)
        args = [queue.caller, queue.n, description.now, "", *first]
        for partition, changes in parts.items():
            script, own_keys, own_args = self.family.part(settings, queue.home, partition, changes)
            keys += own_keys
            args += own_args
        keys += self.family.keys(queue.home, *REQUESTS) if requests else ()
        return words_of(script, keys, [*args, *requests])


def words_of(script: str, keys: Keys, args: list[Any]) -> Call:
    words = [word.encode() if isinstance(word, str) else word for word in (*keys, *args)]
    return (Command("EVALSHA"), SHA1[script], len(keys), *words)
