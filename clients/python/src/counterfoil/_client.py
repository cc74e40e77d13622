"""The options and the families of a client."""

from __future__ import annotations

import math
import os
import time
from functools import partial
from typing import Any, Generic, TypeVar

from typing_extensions import Self, TypedDict, Unpack

from ._buffered import Buffered
from ._cached import Cached, ReadRow
from ._channel import Channel
from ._errors import CounterfoilError, Misconfigured, NotCounted, value_of
from ._family import D, Family
from ._outage import PROBE_SECONDS, Outage
from ._redis import NOT_SENT, Address, checked
from ._series import Series
from ._sums import OnError
from ._value import Daemons
from ._visitors import ActivityCounters, Visitors

F = TypeVar("F", bound=Family[Any])
MAX_RETRY_SECONDS = 30  # Redis remembers a call for at least as long
END_SECONDS = 5  # how long the end of a process may take to send sums
END_PAUSE_SECONDS = 0.5


class Options(TypedDict, total=False):
    """Options of a client.

    - `retry_for`: within how many seconds a call that counts ends if there is no reply, and a read in half of
      them; 1 by default, at most 30
    - `later_every`: for how many seconds sums of `later` wait in the process; 0.005 by default
    - `daemon`, `token`: the URL of the daemon's HTTP API, or those of several daemons, and their token
    """

    retry_for: float
    later_every: float
    daemon: str | list[str]
    token: str


class Client(Generic[D]):
    library: Any
    channel_type: Any = Channel

    def __init__(self, redis: Any, namespace: str, **options: Unpack[Options]) -> None:
        self.namespace, self.is_own = namespace, isinstance(redis, Address)
        self.redis = redis if self.is_own else checked(redis, self.library)
        # whether each send of a command is noticed: a wrapper of an application's client may hide sends
        self.shows_sends = self.is_own
        address = redis.address if isinstance(redis, Address) else ""
        self.attempt_seconds = redis.timeout if isinstance(redis, Address) else 0
        self.is_cluster = not isinstance(address, str) or isinstance(redis, self.library.RedisCluster)
        self.retry_for, self.later_every = options.get("retry_for", 1), options.get("later_every", 0.005)
        self.sessions: dict[Any, Any] = {}
        self.on_errors: dict[str, OnError] = {}  # by family
        if unknown := options.keys() - Options.__annotations__.keys():
            raise Misconfigured("OPTION", f"there is no {', '.join(sorted(unknown))}")
        if not 0 < self.retry_for <= MAX_RETRY_SECONDS:
            raise Misconfigured("OPTION", f"retry_for is at most {MAX_RETRY_SECONDS}, not {self.retry_for}")
        self.daemons = Daemons(options.get("daemon") or [], options.get("token"))

    @classmethod
    def connect(
        cls,
        address: str | list[str],
        namespace: str,
        *,
        timeout: float = 0.4,
        tls_ca: str | None = None,
        tls_verify: bool = True,
        **options: Unpack[Options],
    ) -> Self:
        """Makes connections of its own: to a URL such as `redis://localhost`, `rediss://localhost` (TLS) or
        `unix:///run/redis.sock`, or to a list of nodes of a cluster.

        `timeout` limits connecting and each reply, in seconds. A call is not repeated if the repeat could end
        after `retry_for`.

        With `rediss://`, `tls_ca` is the file of the authority that signed the server's certificate, in PEM, and
        `tls_verify=False` accepts any certificate.

        The library's own retries are off. So a call that was sent once, and whose epoch Redis does not know any more
        (`EXPIRED`), was not executed, and is made anew.
        """
        return cls(Address(address, timeout, tls_ca, tls_verify), namespace, **options)

    @property
    def open_session(self) -> Any:
        """The session of this process or event loop. Raises `NotCounted` if it is closed."""
        session = self.session  # type: ignore[attr-defined]
        if session.is_closed:
            raise NotCounted("CLOSED")
        return session

    def deadline(self) -> float:
        return time.monotonic() + self.retry_for

    def read_deadline(self) -> float:
        return time.monotonic() + self.retry_for / 2

    def buffered(self, family: str, *, on_error: OnError | None = None) -> Buffered[D]:
        """Sums of deltas. `on_error(family, id, delta, error)` is called for each sum of `later` that is
        dropped: the last function that was given for the family. Series give it a name in place of the id,
        and activity a page."""
        return self._reporting(Buffered(self, family), on_error)

    def cached(self, family: str, *, read_row: ReadRow | None = None) -> Cached[D]:
        """Values that return with each change. The daemon reads the rows of counters that are not in Redis.

        `read_row(id)` is for an application that cannot reach a daemon. It must not read in an open
        transaction, whose snapshot may be old: the counter would forget hits. It reads the value of the row
        from the primary, `None` where there is none. With asyncio it is a coroutine function, or it runs in a
        thread."""
        return Cached(self, family, read_row)

    def series(self, family: str, *, on_error: OnError | None = None) -> Series[D]:
        """Counts by slices of time."""
        return self._reporting(Series(self, family), on_error)

    def activity(self, family: str, *, on_error: OnError | None = None) -> ActivityCounters[D]:
        """Views and visitors of the last minutes."""
        return self._reporting(ActivityCounters(self, family), on_error)

    def visitors(self, family: str, *, on_error: OnError | None = None) -> Visitors[D]:
        """Distinct visitors of a day."""
        return self._reporting(Visitors(self, family), on_error)

    def _reporting(self, family: F, on_error: OnError | None) -> F:
        if on_error:
            self.on_errors[family.name] = on_error
        return family


class Session:
    """The connections of a process or an event loop, and what it knows of families.

    Calls are written once, as coroutines that await `execute`, `sleep`, `run` and `latch` of a subclass.
    Those of asyncio suspend a coroutine; the blocking ones block, so it runs to its end in one step. `spawn`
    runs a coroutine function in the background, and returns a function that says whether it still runs.
    """

    sleep: Any
    latch: Any
    spawn: Any
    is_closed = False
    ends_at = math.inf  # the deadline of all calls at the end of the session

    def __init__(self, client: Any) -> None:
        self.client, self.pid = client, os.getpid()
        self.channels: dict[Any, Any] = {}
        self.outages: dict[Any, Outage] = {}
        self._shared: dict[Any, Any] = {}
        self._redis = None if client.is_own else client.redis

    @property
    def redis(self) -> Any:
        """The client of the library. One of our own is made by the first call."""
        if self._redis is None:
            self._redis = self.client.redis.connect(self.client.library)
        return self._redis

    async def share(self, key: Any, deadline: float | None, function: Any, *args: Any) -> None:
        """Calls a coroutine function, or waits for the caller that is doing so for this key, whose deadline may
        be later."""
        mine = self.latch()
        latch: Any = ()
        try:  # an interrupt, such as KeyboardInterrupt, may follow each call below
            latch = self._shared.setdefault(key, mine)
            if latch is mine:
                await function(*args)
        except CounterfoilError as error:
            mine.error = error
            raise
        finally:
            if latch is mine or latch == () and self._shared.get(key, latch) is mine:
                del self._shared[key]
                mine.set()
        if latch is not mine:
            if not await latch.wait_until(deadline):
                raise NotCounted(NOT_SENT, "no time was left to send it", temporary=True)
            value_of(getattr(latch, "error", None))

    def outage(self, key: Any) -> Outage | None:
        outage = self.outages.get(key)
        if outage and not outage.lasts:
            self.outages.pop(key, None)
            return None
        return outage

    def begin_outage(self, key: Any, outage: Outage) -> None:
        if not self.outage(key):
            outage.is_probed = self.spawn(partial(self._probe, outage))
            self.outages[key] = outage

    async def _probe(self, outage: Outage) -> None:
        await self.sleep(PROBE_SECONDS)
        while not self.is_closed and not await outage.probe():
            await self.sleep(PROBE_SECONDS)

    @property
    def sums(self) -> list[Any]:
        return [channel.sums for channel in list(self.channels.values())]

    @property
    def has_sums(self) -> bool:
        return not all(sums.is_empty for sums in self.sums)

    async def send_sums(self) -> None:
        """Sends sums until none is left. Waits for a moment before each send, in which `later` may take more."""
        while self.has_sums and not self.is_closed:
            await self.sleep(self.client.later_every)
            for sums in self.sums:
                await sums.send(self.client.deadline())
            if any(sums.temporary for sums in self.sums):  # they wait until Redis is available
                await self.sleep(PROBE_SECONDS)

    async def end(self, deadline: float) -> None:
        """Sends what `later` took, again and again until the deadline, and raises the first error."""
        self.ends_at = deadline
        while self.has_sums:
            is_last = time.monotonic() + END_PAUSE_SECONDS > deadline
            for key, outage in list(self.outages.items()):
                outage.is_probed = lambda: True  # by this loop, since the probe in the background has ended
                if not is_last and await outage.probe():
                    self.outages.pop(key, None)
            for sums in self.sums:
                await sums.send(deadline, is_last)
            left = deadline - time.monotonic()
            if self.has_sums and left > 0:
                await self.sleep(min(END_PAUSE_SECONDS, left))
        raise_errors(self.sums)

    async def flush(self, all_sums: list[Any]) -> None:
        """Sends what `later` took in some families, and raises the first error."""
        deadline = self.client.deadline()
        for sums in all_sums:
            for _ in range(2):  # the first may only wait for a send that began before the last hits
                await sums.send(deadline)
        raise_errors(all_sums)


def raise_errors(all_sums: list[Any]) -> None:
    errors = [sums.take_error() for sums in all_sums]
    value_of(next(filter(None, errors), None))
