"""The blocking client."""

from __future__ import annotations

import atexit
import os
import threading
import time
from typing import Any, Callable, Coroutine

import redis

from ._client import Client, Session
from ._family import Blocking, T


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine of a blocking session, which never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    raise RuntimeError("a call of the blocking client was suspended")


class Counterfoil(Client[Blocking]):
    """The counters of a namespace, over a `redis.Redis` or `redis.RedisCluster` of the application.

    Threads may share it, and so may processes that are forked later. Give the Redis client a
    `socket_timeout`. `close` it, or use it in a `with` block, to send what `later` took; a normal exit of the
    process does the same.
    """

    library = redis
    run = staticmethod(run)

    @property
    def session(self) -> Process:
        pid = os.getpid()
        session: Process | None = self.sessions.get(pid)
        return session or self.sessions.setdefault(pid, Process(self))

    def close(self) -> None:
        """Sends what `later` took, and closes the connections that are its own. As soon as it begins, `later`
        raises `NotCounted("CLOSED")`; what cannot be sent is dropped and reported."""
        self.session.close()

    def __enter__(self) -> Counterfoil:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Latch:
    """What `asyncio.Event` is, for threads."""

    error: Exception | None = None

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    async def wait(self) -> None:
        with self._lock:
            pass

    def set(self) -> None:
        self._lock.release()


class Process(Session):
    """What belongs to one process; a child makes its own."""

    latch = Latch

    def __init__(self, client: Counterfoil) -> None:
        super().__init__(client)
        self._awake = threading.Event()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    async def execute(self, words: tuple[Any, ...], deadline: float) -> Any:
        return self.redis.execute_command(*words)

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    async def run(self, function: Callable[..., Any], *args: Any) -> Any:
        return function(*args)

    def wake(self) -> None:
        """Starts the thread that sends sums, or wakes it."""
        self._awake.set()
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._send_sums, name="counterfoil", daemon=True)
                self._thread.start()
                atexit.register(self.client.close)

    def close(self) -> None:
        self.is_closed = True
        atexit.unregister(self.client.close)
        self._thread = None
        self._awake.set()
        try:
            run(self.flush(self.sums))
        finally:
            if self.owns_redis:
                self.redis.close()

    def _send_sums(self) -> None:
        while self._thread is threading.current_thread():
            self._awake.wait()
            self._awake.clear()
            if run(self.send_sums()):
                self._awake.set()
