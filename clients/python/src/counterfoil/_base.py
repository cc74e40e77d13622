"""What the blocking client and that of asyncio share: how they are made, and how a method becomes a call of either."""

from __future__ import annotations

import functools
import time
from typing import Any, Awaitable, Callable, Dict, Generic, List, Optional, TypeVar, Union, overload

from typing_extensions import Concatenate, ParamSpec, Self, TypedDict, Unpack

from . import _redis
from ._errors import Misconfigured
from ._steps import Steps
from ._sources import Sources

MAX_RETRY_SECONDS = 30  # that long Redis surely remembers a call


class Blocking:
    """Marks what a blocking client makes: its calls return their result."""


class Awaiting:
    """Marks what a client of asyncio makes: its calls return an awaitable."""


D = TypeVar("D")
P = ParamSpec("P")
T = TypeVar("T")


class Options(TypedDict, total=False):
    """Options of a client.

    - `retry_for`: for how many seconds a call is repeated if there is no reply; 10 by default, at most 30
    - `later_every`: for how many seconds sums of `later` wait in the process; 0.005 by default
    - `daemon`, `token`: the URL of the daemon's HTTP API, and its token
    - `database`: a function that returns a DB-API connection for one read of `value`, which is closed after it; or a connection
      in autocommit mode
    """

    retry_for: float
    later_every: float
    daemon: str
    token: str
    database: Any


class Base(Generic[D]):
    """A client without the kinds of its families."""

    _library: Any
    _retry: Any
    make_client: Optional[Callable[[], Any]] = None

    def __init__(self, client: Any, namespace: str, **options: Unpack[Options]) -> None:
        if not self.make_client:
            _redis.check(client, self._library)
            self.is_cluster = isinstance(client, self._library.RedisCluster)
        self.client = client
        self.is_own = client is None
        self.namespace = namespace
        self.retry_for = options.get("retry_for", 10)
        self.later_every = options.get("later_every", 0.005)
        self.sources = Sources(options.get("daemon"), options.get("token"), options.get("database"))
        self._sessions: Dict[Any, Any] = {}
        if not 0 < self.retry_for <= MAX_RETRY_SECONDS:
            raise Misconfigured("OPTION", f"retry_for is up to {MAX_RETRY_SECONDS} seconds, not {self.retry_for}")

    @classmethod
    def connect(cls, address: Union[str, List[str]], namespace: str, *, timeout: float = 2, **options: Unpack[Options]) -> Self:
        """Makes connections of its own: to a URL such as `redis://localhost` or `unix:///run/redis.sock`, or to a list of
        nodes of a cluster.

        `timeout` is the time limit of connecting and of a reply, in seconds. The library's own retries are off, so that a call
        that Redis does not know (`EXPIRED`) can be made anew.
        """
        self = cls.__new__(cls)
        self.make_client = lambda: _redis.connect(address, cls._library, cls._retry, timeout)
        self.is_cluster = not isinstance(address, str)
        self.__init__(None, namespace, **options)  # type: ignore[misc]
        return self

    @property
    def session(self) -> Any:
        """What belongs to this process or event loop, which may be another one than that of the last call."""
        raise NotImplementedError

    def deadline(self) -> float:
        return time.monotonic() + self.retry_for


class Of(Generic[D]):
    """What belongs to a client."""

    def __init__(self, client: Base[D]) -> None:
        self.client = client


class call(Generic[P, T]):
    """Makes a method that returns steps a call: one that runs them in a blocking client, a coroutine function with asyncio."""

    def __init__(self, steps: Callable[Concatenate[Any, P], Steps[T]]) -> None:
        self.steps = steps
        functools.update_wrapper(self, steps)  # type: ignore[arg-type]

    @overload
    def __get__(self, family: None, owner: Any) -> Self: ...

    @overload
    def __get__(self, family: Of[Blocking], owner: Any) -> Callable[P, T]: ...

    @overload
    def __get__(self, family: Of[Awaiting], owner: Any) -> Callable[P, Awaitable[T]]: ...

    def __get__(self, family: Any, owner: Any) -> Any:
        if family is None:
            return self
        return lambda *args, **options: family.client.session.run(self.steps(family, *args, **options))
