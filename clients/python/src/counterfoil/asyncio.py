"""The same client for asyncio: calls are coroutines, and concurrent ones share calls to Redis."""

import asyncio
import inspect
from datetime import date
from types import TracebackType
from typing import (
    Any,
    Coroutine,
    Callable,
    Dict,
    Generic,
    Hashable,
    Iterable,
    List,
    Mapping,
    Optional,
    Set,
    Tuple,
    Type,
    TypeVar,
    Union,
)

import redis.asyncio
from redis.asyncio.client import Pipeline
from redis.asyncio.cluster import ClusterPipeline
from redis.asyncio.retry import Retry

from . import _redis
from ._activity import Activity, ActivityFamily
from ._buffered import BufferedFamily, Result
from ._cached import CachedFamily
from ._errors import CounterfoilError, Misconfigured, copy_of
from ._family import Family, Options, Session, checked_name, id_bytes, integer
from ._later import Later, OnError
from ._series import SeriesFamily
from ._steps import Command, Commit, Queue, Run, Share, Sleep, Step, Steps
from ._value import Sources, Table
from ._visitors import VisitorsFamily

T = TypeVar("T")
F = TypeVar("F", bound=Family)


class _Guard:
    """What lets one commit of a queue, or one settle of sums, run at a time."""

    def __init__(self) -> None:
        self.task: Optional["asyncio.Task[None]"] = None
        self.lock = asyncio.Lock()


class _Loop:
    """What belongs to one event loop."""

    def __init__(self, options: Options, loop: asyncio.AbstractEventLoop) -> None:
        self._options = options
        self._loop = loop
        self.session = Session(options, _Guard)
        self._client: Any = options.connect() if options.connect else options.client
        self._shared: Dict[Hashable, "asyncio.Task[Any]"] = {}
        self._tasks: Set["asyncio.Task[Any]"] = set()
        self._wake = asyncio.Event()
        self._cancels = 0
        self._later_task: Optional["asyncio.Task[None]"] = None

    async def run(self, steps: Steps[T], survives: bool = False) -> T:
        """Runs the steps of a call. If it `survives`, a cancelled task still ends its call: as after a lost reply."""
        reply: Any = None
        error: Optional[BaseException] = None
        while True:
            try:
                step = steps.throw(error) if error else steps.send(reply)
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]
            reply = error = None
            while True:
                try:
                    reply = await self._take(step)
                except asyncio.CancelledError as failure:
                    if survives:
                        self._cancels += 1
                        if not isinstance(step, Command):
                            continue
                        error = redis.ConnectionError("the task was cancelled")
                    else:
                        error = failure
                except BaseException as failure:
                    error = failure
                break

    async def _take(self, step: Step) -> Any:
        if isinstance(step, Commit):
            return await self._commit(step)
        if isinstance(step, Command):
            return await self._client.execute_command(*step.words)
        if isinstance(step, Sleep):
            return await asyncio.sleep(step.seconds)
        if isinstance(step, Run):
            if inspect.iscoroutinefunction(step.function):
                return await step.function(*step.args)
            return await asyncio.to_thread(step.function, *step.args)
        return await self._share(step)

    async def _commit(self, step: Commit) -> None:
        """A task makes the calls, so that a cancelled caller does not take the others with it."""
        lasts = dict(step.entries)
        for queue, entry in lasts.items():
            entry.future = self._loop.create_future()
            if queue.guard.task is None and not entry.settled:
                queue.guard.task = self._spawn(self._drain(queue))
        for entry in lasts.values():
            if not entry.settled:
                await entry.future

    async def _drain(self, queue: Queue) -> None:
        try:
            while queue.waiting:
                for entry in await self.run(queue.commit(), survives=True):
                    if entry.future and not entry.future.done():
                        entry.future.set_result(None)
        finally:
            queue.guard.task = None

    async def _share(self, step: Share) -> Any:
        task = self._shared.get(step.key)
        if task is None:
            task = self._shared[step.key] = self._spawn(self.run(step.steps))
            task.add_done_callback(lambda _: self._shared.pop(step.key))
        else:
            step.steps.close()
        try:
            return await asyncio.shield(task)
        except CounterfoilError as error:
            raise copy_of(error) from error.__cause__

    def _spawn(self, coroutine: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def later(self, later: Later, id: str, delta: int) -> None:
        if later.take(id, delta):
            self._wake.set()
            if self._later_task is None or self._later_task.done():
                self._later_task = self._spawn(self._send_later())

    async def _send_later(self) -> None:
        """Sends sums; also at the end of the loop, when asyncio.run cancels all tasks."""
        cancels = self._cancels
        while self._cancels == cancels:
            try:
                await self._wake.wait()
                self._wake.clear()
                await asyncio.sleep(self._options.later_every)
            except asyncio.CancelledError:
                self._cancels += 1
            for later in self.session.laters:
                await self._settle(later)
                if later.sums:  # they stay until Redis is available
                    self._wake.set()

    async def _settle(self, later: Later) -> Optional[CounterfoilError]:
        async with later.guard.lock:
            return await self.run(later.settle(), survives=True)

    async def flush(self, later: Later) -> None:
        later.raise_errors(await asyncio.shield(self._spawn(self._settle(later))))

    async def close(self) -> None:
        try:
            for later in self.session.laters:
                await self.flush(later)
        finally:
            if self._later_task:
                self._later_task.cancel()
                await asyncio.wait([self._later_task])
            if self.session.own:
                await self._client.aclose() if hasattr(self._client, "aclose") else await self._client.close()


class Counterfoil:
    """Counters of one namespace, over an application's Redis client of asyncio. It belongs to one event loop, as the client does.

    - `client`: a `redis.asyncio.Redis` or `redis.asyncio.RedisCluster` with `decode_responses=False` and a `socket_timeout`
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
        _redis.check(client, (redis.asyncio.Redis, redis.asyncio.RedisCluster), (Pipeline, ClusterPipeline))
        is_cluster = isinstance(client, redis.asyncio.RedisCluster)
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
        connect = lambda: _redis.connect(address, redis.asyncio, Retry, timeout)
        sources = Sources(daemon, token, database)
        self._open(Options(namespace, None, connect, is_cluster, retry_for, later_every, sources))
        return self

    def _open(self, options: Options) -> None:
        self._options = options.checked()
        self._loops: Dict[asyncio.AbstractEventLoop, _Loop] = {}

    def _running(self) -> _Loop:
        """The state of the running event loop."""
        loop = asyncio.get_running_loop()
        state = self._loops.get(loop)
        if state is None:
            if self._options.client is not None and self._loops:
                raise Misconfigured("EVENT LOOP", "the client was used in another event loop: make one in each, or use connect()")
            self._loops = {other: state for other, state in self._loops.items() if not other.is_closed()}
            state = self._loops[loop] = _Loop(self._options, loop)
        return state

    def buffered(self, family: str, *, table: Optional[Table] = None, on_error: Optional[OnError] = None) -> "Buffered":
        """Sums of deltas. `table` is (table, id column, value column) if the family is stored in a table of the application.

        `on_error(family, id, delta, error)` is called for each sum of `later` that was dropped.
        """
        return Buffered(self, BufferedFamily, family, table=table, on_error=on_error)

    def cached(
        self, family: str, *, read_row: Optional[Callable[[str], Any]] = None, table: Optional[Table] = None
    ) -> "Cached":
        """Values that return with each change. `read_row(id)` reads the row from the primary, outside of a transaction, and
        returns 0 where there is none; by default the daemon does it. It is a coroutine function, or runs in a thread."""
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

    async def close(self) -> None:
        """Flushes what `later` took, and closes the connection if it is its own."""
        await self._running().close()

    async def __aenter__(self) -> "Counterfoil":
        return self

    async def __aexit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], traceback: Optional[TracebackType]
    ) -> None:
        await self.close()


class _Handle(Generic[F]):
    def __init__(self, owner: Counterfoil, kind: Type[F], family: str, **options: Any) -> None:
        self._owner = owner
        self._kind = kind
        self._name = checked_name(family)
        self._handed = options

    def _family(self) -> Tuple[_Loop, F]:
        """The running loop, and the family in it."""
        loop = self._owner._running()
        return loop, loop.session.family(self._kind, self._name, self._handed)


class Buffered(_Handle[BufferedFamily]):
    """Counters that are summed in Redis and written to MySQL within a minute by default.

    An id is a str of 1 to 255 bytes, a delta a 64-bit integer.
    """

    async def add(self, id: str, delta: int = 1) -> Optional[int]:
        """Adds to a counter, and returns what it has pending in Redis right after it. None: counted, but that reply was lost."""
        loop, family = self._family()
        return await loop.run(family.add(id, delta))

    async def add_many(self, pairs: Union[Mapping[str, int], Iterable[Tuple[str, int]]]) -> List[Result]:
        """Adds each delta to its id. Returns for each what `add` returns, or the error that `add` would raise."""
        loop, family = self._family()
        return await loop.run(family.add_many(pairs))

    async def add_once(self, request: str, id: str, delta: int = 1, *, epoch: Optional[str] = None) -> bool:
        """Adds once, however often and in which process the request is made. Returns False if it was made before.

        `request` names the work, in 1 to 64 bytes. A job that may run again after a minute stores `request_epoch` before its
        first call and passes it each time.
        """
        loop, family = self._family()
        return await loop.run(family.add_once(request, id, delta, epoch))

    async def request_epoch(self, request: str, id: str) -> str:
        """Returns the epoch to be stored with a job before its first `add_once`."""
        loop, family = self._family()
        return await loop.run(family.request_epoch(request, id))

    def later(self, id: str, delta: int = 1) -> None:
        """Adds to a sum in the process, which a task sends within milliseconds. Never blocks. A killed process loses it."""
        id_bytes(id)
        integer(delta)
        loop, family = self._family()
        loop.later(family.later, id, delta)

    async def flush(self) -> None:
        """Waits until all that `later` took is counted. Raises the first error since the last flush of what was not."""
        loop, family = self._family()
        await loop.flush(family.later)

    async def value(self, id: str) -> int:
        """Returns the exact value, with what is not in MySQL yet."""
        loop, family = self._family()
        return await loop.run(family.value(id))


class Cached(_Handle[CachedFamily]):
    """Counters whose value returns with each change, or that must not leave the bounds of their family."""

    async def incr(self, id: str, delta: int = 1) -> int:
        """Adds to a counter, and returns its new value. Raises `NotCounted("RANGE")` with the `value` beyond the bounds."""
        loop, family = self._family()
        return await loop.run(family.incr(id, delta))

    async def set(self, id: str, value: int) -> int:
        """Sets a counter, and returns its new value."""
        loop, family = self._family()
        return await loop.run(family.set(id, value))

    async def get(self, id: str) -> int:
        """Returns the value, from Redis if it is there."""
        loop, family = self._family()
        return await loop.run(family.get(id))

    async def value(self, id: str) -> int:
        """Returns the exact value from MySQL and Redis, without loading the counter into Redis."""
        loop, family = self._family()
        return await loop.run(family.value(id))


class Series(_Handle[SeriesFamily]):
    """Counts by slices of time, under names of 1 to 200 bytes."""

    async def add(self, name: str, n: int = 1) -> None:
        """Adds to the current slice of every window."""
        loop, family = self._family()
        await loop.run(family.add(name, n))

    async def get(self, name: str, label: str) -> List[Tuple[int, int]]:
        """Returns the slices of a window such as `60s` or `day`: start in Unix seconds and count, the running slice last."""
        loop, family = self._family()
        return await loop.run(family.get(name, label))


class ActivityCounters(_Handle[ActivityFamily]):
    """Views of pages and their distinct visitors, within the window of the family."""

    async def touch(self, page: str, visitor: Union[str, bytes]) -> None:
        """Counts a view of a page (1 to 200 bytes) by a visitor (1 to 255 bytes)."""
        loop, family = self._family()
        await loop.run(family.touch(page, visitor))

    async def now(self, page: str) -> Activity:
        """Returns `(views, visitors)` of the window; visitors are an estimate in a family with `hyperloglog`."""
        loop, family = self._family()
        return await loop.run(family.now(page))


class Visitors(_Handle[VisitorsFamily]):
    """Distinct visitors of a scope on each day."""

    async def first_visit(self, scope: str, day: Union[str, date], visitor: Union[str, bytes]) -> bool:
        """Counts a visitor once for the scope and day (`YYYY-MM-DD`). Returns whether it is the first visit."""
        loop, family = self._family()
        return await loop.run(family.first_visit(scope, day, visitor))

    async def value(self, scope: str, day: Union[str, date]) -> int:
        """Returns the exact number of visitors."""
        loop, family = self._family()
        return await loop.run(family.value_of_day(scope, day))
