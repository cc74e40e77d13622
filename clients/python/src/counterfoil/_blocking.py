"""The blocking client."""

from __future__ import annotations

import atexit
import os
import threading
import time
from contextlib import ExitStack, suppress
from typing import Any, Callable, Coroutine

import redis

from ._client import Client, Session
from ._family import Blocking, T

_senders: set[Counterfoil] = set()  # clients that may have sums


@atexit.register  # at the import, so that it runs after what applications register later
def _close_all() -> None:
    with ExitStack() as stack:
        for client in list(_senders):
            stack.callback(client.close)


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
    def session(self) -> Any:
        pid = os.getpid()
        return self.sessions.get(pid) or self.sessions.setdefault(pid, Process(self))

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

    def __init__(self) -> None:
        self._lock, self._thread = threading.Lock(), threading.get_ident()
        self._lock.acquire()
        self.set = self._lock.release

    async def wait(self) -> None:
        if self._thread == threading.get_ident():
            raise RuntimeError("the handler of a signal, or a callback, waits for the call it is in")
        with self._lock:
            pass


class Process(Session):
    """What belongs to one process; a child makes its own."""

    latch = Latch
    _thread: threading.Thread | None = None

    def __init__(self, client: Counterfoil) -> None:
        super().__init__(client)
        self._awake = threading.Event()

    async def execute(self, words: tuple[Any, ...], deadline: float) -> Any:
        return self.redis.execute_command(*words)

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    async def run(self, function: Callable[..., Any], *args: Any) -> Any:
        return function(*args)

    def wake(self) -> None:
        """Starts the thread that sends sums, or wakes it."""
        self._awake.set()
        if not self._thread or not self._thread.is_alive():
            _senders.add(self.client)
            self._thread = threading.Thread(target=self._send_sums, name="counterfoil", daemon=True)
            with suppress(RuntimeError):  # there are too many, or Python exits
                self._thread.start()

    def close(self) -> None:
        self.is_closed = True
        self._awake.set()
        try:
            run(self.flush(self.sums))
        finally:
            if not self.has_sums:  # else it was interrupted
                _senders.discard(self.client)
                if self.client.is_own and self._redis:
                    self._redis.close()

    def _send_sums(self) -> None:
        # greenlets may start several at a time
        while self._thread is threading.current_thread() and not self.is_closed:
            self._awake.wait()
            self._awake.clear()
            run(self.send_sums())
