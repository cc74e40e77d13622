"""What the blocking client and that of asyncio share, without the kinds of their families."""

from __future__ import annotations

import json
import threading
import time
from typing import Any, Callable, Generic, Tuple, TypeVar
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import ProxyHandler, Request, build_opener

from typing_extensions import Self, TypedDict, Unpack

from . import _redis
from ._errors import CounterfoilError, Misconfigured, NotCounted

MAX_RETRY_SECONDS = 30  # that long Redis surely remembers a call
HTTP_SECONDS = 12  # the daemon replies within 10
Table = Tuple[str, str, str]


class Blocking:
    """Marks a client whose calls return their result."""


class Awaiting:
    """Marks a client of asyncio, whose calls return an awaitable."""


D = TypeVar("D")  # one of both


class Options(TypedDict, total=False):
    """Options of a client.

    - `retry_for`: for how many seconds a call is repeated if there is no reply; 10 by default, at most 30
    - `later_every`: for how many seconds sums of `later` wait in the process; 0.005 by default
    - `daemon`, `token`: the URL of the daemon's HTTP API, and its token
    - `database`: a function that returns a DB-API connection for one read, which is closed after it; or a connection in
      autocommit mode
    """

    retry_for: float
    later_every: float
    daemon: str
    token: str
    database: Any


class Base(Generic[D]):
    library: Any
    retry: Any
    make_client: Callable[[], Any] | None = None

    def __init__(self, client: Any, namespace: str, **options: Unpack[Options]) -> None:
        if not self.make_client:
            _redis.check(client, self.library)
            self.is_cluster = isinstance(client, self.library.RedisCluster)
        self.client, self.is_own, self.namespace = client, client is None, namespace
        self.retry_for, self.later_every = options.get("retry_for", 10), options.get("later_every", 0.005)
        self.daemon, self.database = options.get("daemon", "").rstrip("/"), options.get("database")
        self._headers = {"Authorization": f"Bearer {options['token']}"} if "token" in options else {}
        self._database_lock = threading.Lock()
        self._sessions: dict[Any, Any] = {}
        if not 0 < self.retry_for <= MAX_RETRY_SECONDS:
            raise Misconfigured("OPTION", f"retry_for is up to {MAX_RETRY_SECONDS} seconds, not {self.retry_for}")

    @classmethod
    def connect(cls, address: str | list[str], namespace: str, *, timeout: float = 2, **options: Unpack[Options]) -> Self:
        """Makes connections of its own: to a URL such as `redis://localhost` or `unix:///run/redis.sock`, or to a list of
        nodes of a cluster.

        `timeout` is the time limit of connecting and of a reply, in seconds. The library's own retries are off, so that a call
        that Redis does not know (`EXPIRED`) can be made anew.
        """
        self = cls.__new__(cls)
        self.make_client = lambda: _redis.connect(address, cls.library, cls.retry, timeout)
        self.is_cluster = not isinstance(address, str)
        self.__init__(None, namespace, **options)  # type: ignore[misc]
        return self

    @property
    def session(self) -> Any:
        """What belongs to this process or event loop, which may be another one than that of the last call."""
        raise NotImplementedError

    def deadline(self) -> float:
        return time.monotonic() + self.retry_for

    def get(self, family: str, id: str) -> int:
        """Gets the value of an id from the daemon. Blocks."""
        if not self.daemon:
            raise Misconfigured("NO SOURCE", "values are read from the daemon or the database: pass daemon=URL or database=")
        url = f"{self.daemon}/api/v1/values?{urlencode({'family': family, 'id': id})}"
        try:
            with build_opener(ProxyHandler({})).open(Request(url, headers=self._headers), timeout=HTTP_SECONDS) as response:
                return int(json.load(response)["values"][0]["value"])
        except HTTPError as error:
            with error:
                explanation = f"the daemon replied {error.code}: {error.read(2000).decode(errors='replace')}"
            if error.code == 429 or error.code >= 500:
                raise NotCounted("DAEMON", explanation, temporary=True) from error
            raise Misconfigured({404: "UNCONFIGURED", 409: "MISMATCH"}.get(error.code, "DAEMON"), explanation) from error
        except Exception as error:
            raise NotCounted("DAEMON", f"{url}: {error}", temporary=True) from error

    def rows(self, statement: str, parameters: list[Any]) -> list[list[Any]]:
        """Executes one statement in the database, outside of any transaction. Blocks."""
        try:
            if callable(self.database):
                connection = self.database()
                try:
                    connection.rollback()  # one from a pool may have an old snapshot
                    return _fetch(connection, statement, parameters)
                finally:
                    connection.close()
            with self._database_lock:  # a connection is for one thread at a time
                # PyMySQL has the status of the server, mysql-connector in_transaction
                is_open = getattr(self.database, "server_status", 0) & 1 or getattr(self.database, "in_transaction", False)
                if is_open or _fetch(self.database, "SELECT @@autocommit", [])[0][0] != 1:
                    raise Misconfigured("DATABASE", "the connection has a transaction: pass a function that returns one without")
                return _fetch(self.database, statement, parameters)
        except CounterfoilError:
            raise
        except Exception as error:
            raise NotCounted("DATABASE", str(error), temporary=True) from error


def _fetch(connection: Any, statement: str, parameters: list[Any]) -> list[list[Any]]:
    cursor = connection.cursor()
    try:
        cursor.execute(statement, parameters)
        return [list(row.values() if isinstance(row, dict) else row) for row in cursor.fetchall()]
    finally:
        cursor.close()
