"""The blocking client."""

import atexit
import logging
import os
import threading
import time
from concurrent.futures import Future
from datetime import date
from types import TracebackType
from typing import Any, Callable, Dict, Generic, Hashable, Iterable, List, Mapping, Optional, Tuple, Type, TypeVar, Union

import redis
from redis.client import Pipeline
from redis.cluster import ClusterPipeline
from redis.retry import Retry

from . import _redis
from ._activity import Activity, ActivityFamily
from ._buffered import BufferedFamily, Result
from ._cached import CachedFamily
from ._errors import CounterfoilError, copy_of
from ._family import Family, Options, Session, checked_name, id_bytes, integer
from ._later import Later, OnError
from ._series import SeriesFamily
from ._steps import Command, Commit, Run, Share, Sleep, Step, Steps
from ._value import Sources, Table
from ._visitors import VisitorsFamily

T = TypeVar("T")
F = TypeVar("F", bound=Family)
_log = logging.getLogger("counterfoil")


class _Process:
    """What belongs to one process: a child that was forked makes its own."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._pid = os.getpid()
        self.session = Session(options, threading.Lock)
        self._client = options.client
        self._lock = threading.Lock()
        self._shared: Dict[Hashable, "Future[Any]"] = {}
        self._wake = threading.Event()
        self._is_closed = False
        self._thread: Optional[threading.Thread] = None

    def run(self, steps: Steps[T]) -> T:
        """Runs the steps of a call, and returns its result."""
        reply: Any = None
        error: Optional[BaseException] = None
        while True:
            try:
                step = steps.throw(error) if error else steps.send(reply)
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]
            reply = error = None
            try:
                reply = self._take(step)
            except BaseException as failure:  # also a KeyboardInterrupt ends the steps in order
                error = failure

    def _take(self, step: Step) -> Any:
        if isinstance(step, Commit):
            return self._commit(step)
        if isinstance(step, Command):
            return self.client().execute_command(*step.words)
        if isinstance(step, Sleep):
            return time.sleep(step.seconds)
        if isinstance(step, Run):
            return step.function(*step.args)
        return self._share(step)

    def client(self) -> Any:
        if self._client is None:
            with self._lock:
                if self._client is None and self._options.connect:
                    self._client = self._options.connect()
        return self._client

    def _commit(self, step: Commit) -> None:
        """The thread that has the guard makes a call for all that wait for it."""
        for queue, entry in dict(step.entries).items():  # the last of each queue
            while not entry.settled:
                with queue.guard:
                    if not entry.settled:
                        self.run(queue.commit())

    def _share(self, step: Share) -> Any:
        with self._lock:
            future = self._shared.get(step.key)
            is_mine = future is None
            if future is None:
                future = self._shared[step.key] = Future()
        if not is_mine:
            step.steps.close()
            error = future.exception()
            if error:
                raise copy_of(error) if isinstance(error, CounterfoilError) else error
            return future.result()
        try:
            future.set_result(self.run(step.steps))
        except BaseException as error:
            future.set_exception(error)
            raise
        finally:
            del self._shared[step.key]
        return future.result()

    def later(self, later: Later, id: str, delta: int) -> None:
        if later.take(id, delta):
            self._wake.set()
            if self._thread is None:
                with self._lock:
                    if self._thread is None:
                        self._thread = threading.Thread(target=self._send_later, name="counterfoil", daemon=True)
                        self._thread.start()
                        atexit.register(self._flush_at_exit)

    def _send_later(self) -> None:
        while not self._is_closed:
            self._wake.wait()
            self._wake.clear()
            time.sleep(self._options.later_every)
            for later in self.session.laters:
                with later.guard:
                    self.run(later.settle())
                if later.sums:  # they stay until Redis is available
                    self._wake.set()

    def flush(self, later: Later) -> None:
        with later.guard:
            later.raise_errors(self.run(later.settle()))

    def _flush_at_exit(self) -> None:
        if os.getpid() == self._pid:  # guard: pid
            try:
                self.close()
            except CounterfoilError as error:
                _log.error("at exit: %s", error)

    def close(self) -> None:
        try:
            for later in self.session.laters:
                self.flush(later)
        finally:
            self._is_closed = True
            self._wake.set()
            atexit.unregister(self._flush_at_exit)
            if self.session.own and self._client is not None:
                self._client.close()


class Counterfoil:
    """Counters of one namespace, over an application's Redis client. Threads may share it, and so may forked processes.

    - `client`: a `redis.Redis` or `redis.RedisCluster` with `decode_responses=False` and a `socket_timeout`
    - `retry_for`: for how many seconds a call is repeated if there is no reply, up to 30
    - `later_every`: how many seconds sums of `later` wait in the process
    - `daemon`, `token`: the URL of the daemon's HTTP API, and its token
    - `database`: a function that returns a DB-API connection, which is closed after use, or a connection in autocommit mode
    """

    def __init__(
        self,
        client: Any,
        namespace: str,
        *,
        retry_for: float = 10,
        later_every: float = 0.005,
        daemon: Optional[str] = None,
        token: Optional[str] = None,
        database: Any = None,
    ) -> None:
        _redis.check(client, (redis.Redis, redis.RedisCluster), (Pipeline, ClusterPipeline))
        is_cluster = isinstance(client, redis.RedisCluster)
        sources = Sources(daemon, token, database)
        self._open(Options(namespace, client, None, is_cluster, retry_for, later_every, sources))

    @classmethod
    def connect(
        cls,
        address: Union[str, List[str]],
        namespace: str,
        *,
        timeout: float = 2,
        retry_for: float = 10,
        later_every: float = 0.005,
        daemon: Optional[str] = None,
        token: Optional[str] = None,
        database: Any = None,
    ) -> "Counterfoil":
        """Connects by itself: to a URL such as `redis://localhost` or `unix:///run/redis.sock`, or to the nodes of a cluster.

        `timeout` is the time limit of connecting and of a reply, in seconds. The client library's own retries are off, so a
        call that Redis did not know (`EXPIRED`) can be made anew.
        """
        self = cls.__new__(cls)
        is_cluster = not isinstance(address, str)
        connect = lambda: _redis.connect(address, redis, Retry, timeout)
        sources = Sources(daemon, token, database)
        self._open(Options(namespace, None, connect, is_cluster, retry_for, later_every, sources))
        return self

    def _open(self, options: Options) -> None:
        self._options = options.checked()
        self._processes: Dict[int, _Process] = {}

    def _process(self) -> _Process:
        """The state of this process, which may have been forked since the last call."""
        pid = os.getpid()  # guard: pid
        return self._processes.get(pid) or self._processes.setdefault(pid, _Process(self._options))

    def buffered(self, family: str, *, table: Optional[Table] = None, on_error: Optional[OnError] = None) -> "Buffered":
        """Sums of deltas. `table` is (table, id column, value column) if the family is stored in a table of the application.

        `on_error(family, id, delta, error)` is called for each sum of `later` that was dropped.
        """
        return Buffered(self, BufferedFamily, family, table=table, on_error=on_error)

    def cached(
        self, family: str, *, read_row: Optional[Callable[[str], int]] = None, table: Optional[Table] = None
    ) -> "Cached":
        """Values that return with each change. `read_row(id)` reads the row from the primary, outside of a transaction, and
        returns 0 where there is none; by default the daemon does it."""
        return Cached(self, CachedFamily, family, table=table, read_row=read_row)

    def series(self, family: str) -> "Series":
        """Counts by slices of time."""
        return Series(self, SeriesFamily, family)

    def activity(self, family: str) -> "ActivityCounters":
        """Views and visitors of the last minutes."""
        return ActivityCounters(self, ActivityFamily, family)

    def visitors(self, family: str, *, table: Optional[Table] = None) -> "Visitors":
        """Counts each visitor of a day once."""
        return Visitors(self, VisitorsFamily, family, table=table)

    def close(self) -> None:
        """Flushes what `later` took, and closes the connection if it is its own."""
        self._process().close()

    def __enter__(self) -> "Counterfoil":
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], traceback: Optional[TracebackType]
    ) -> None:
        self.close()


class _Handle(Generic[F]):
    def __init__(self, owner: Counterfoil, kind: Type[F], family: str, **options: Any) -> None:
        self._owner = owner
        self._kind = kind
        self._name = checked_name(family)
        self._handed = options

    def _family(self) -> Tuple[_Process, F]:
        """This process, and the family in it."""
        process = self._owner._process()
        return process, process.session.family(self._kind, self._name, self._handed)


class Buffered(_Handle[BufferedFamily]):
    """Counters that are summed in Redis and written to MySQL within a minute by default.

    An id is a str of 1 to 255 bytes, a delta a 64-bit integer.
    """

    def add(self, id: str, delta: int = 1) -> Optional[int]:
        """Adds to a counter, and returns what it has pending in Redis right after it. None: counted, but that reply was lost."""
        process, family = self._family()
        return process.run(family.add(id, delta))

    def add_many(self, pairs: Union[Mapping[str, int], Iterable[Tuple[str, int]]]) -> List[Result]:
        """Adds each delta to its id. Returns for each what `add` returns, or the error that `add` would raise."""
        process, family = self._family()
        return process.run(family.add_many(pairs))

    def add_once(self, request: str, id: str, delta: int = 1, *, epoch: Optional[str] = None) -> bool:
        """Adds once, however often and in which process the request is made. Returns False if it was made before.

        `request` names the work, in 1 to 64 bytes. A job that may run again after a minute stores `request_epoch` before its
        first call and passes it each time.
        """
        process, family = self._family()
        return process.run(family.add_once(request, id, delta, epoch))

    def request_epoch(self, request: str, id: str) -> str:
        """Returns the epoch to be stored with a job before its first `add_once`."""
        process, family = self._family()
        return process.run(family.request_epoch(request, id))

    def later(self, id: str, delta: int = 1) -> None:
        """Adds to a sum in the process, which a thread sends within milliseconds. Never blocks. A killed process loses it."""
        id_bytes(id)
        integer(delta)
        process, family = self._family()
        process.later(family.later, id, delta)

    def flush(self) -> None:
        """Waits until all that `later` took is counted. Raises the first error since the last flush of what was not."""
        process, family = self._family()
        process.flush(family.later)

    def value(self, id: str) -> int:
        """Returns the exact value, with what is not in MySQL yet."""
        process, family = self._family()
        return process.run(family.value(id))


class Cached(_Handle[CachedFamily]):
    """Counters whose value returns with each change, or that must not leave the bounds of their family."""

    def incr(self, id: str, delta: int = 1) -> int:
        """Adds to a counter, and returns its new value. Raises `NotCounted("RANGE")` with the `value` beyond the bounds."""
        process, family = self._family()
        return process.run(family.incr(id, delta))

    def set(self, id: str, value: int) -> int:
        """Sets a counter, and returns its new value."""
        process, family = self._family()
        return process.run(family.set(id, value))

    def get(self, id: str) -> int:
        """Returns the value, from Redis if it is there."""
        process, family = self._family()
        return process.run(family.get(id))

    def value(self, id: str) -> int:
        """Returns the exact value from MySQL and Redis, without loading the counter into Redis."""
        process, family = self._family()
        return process.run(family.value(id))


class Series(_Handle[SeriesFamily]):
    """Counts by slices of time, under names of 1 to 200 bytes."""

    def add(self, name: str, n: int = 1) -> None:
        """Adds to the current slice of every window."""
        process, family = self._family()
        process.run(family.add(name, n))

    def get(self, name: str, label: str) -> List[Tuple[int, int]]:
        """Returns the slices of a window such as `60s` or `day`: start in Unix seconds and count, the running slice last."""
        process, family = self._family()
        return process.run(family.get(name, label))


class ActivityCounters(_Handle[ActivityFamily]):
    """Views of pages and their distinct visitors, within the window of the family."""

    def touch(self, page: str, visitor: Union[str, bytes]) -> None:
        """Counts a view of a page (1 to 200 bytes) by a visitor (1 to 255 bytes)."""
        process, family = self._family()
        process.run(family.touch(page, visitor))

    def now(self, page: str) -> Activity:
        """Returns `(views, visitors)` of the window; visitors are an estimate in a family with `hyperloglog`."""
        process, family = self._family()
        return process.run(family.now(page))


class Visitors(_Handle[VisitorsFamily]):
    """Distinct visitors of a scope on each day."""

    def first_visit(self, scope: str, day: Union[str, date], visitor: Union[str, bytes]) -> bool:
        """Counts a visitor once for the scope and day (`YYYY-MM-DD`). Returns whether it is the first visit."""
        process, family = self._family()
        return process.run(family.first_visit(scope, day, visitor))

    def value(self, scope: str, day: Union[str, date]) -> int:
        """Returns the exact number of visitors."""
        process, family = self._family()
        return process.run(family.value_of_day(scope, day))
