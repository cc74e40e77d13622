"""The blocking client."""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from typing import Any, Callable, Coroutine

import redis

from . import _exit
from ._client import END_SECONDS, Client, Session
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
    def session(self) -> Any:
        pid = os.getpid()
        return self.sessions.get(pid) or self.sessions.setdefault(pid, Process(self))

    def flush(self) -> None:
        """Sends what `later` took in all families, and raises the first error of what was not counted since the
        last flush. Waits for at most `retry_for`."""
        session = self.open_session
        run(session.flush(session.sums))

    def close(self) -> None:
        """Sends what `later` took, and closes the connections that are its own. While Redis is unreachable it tries
        again for 5 s; then it drops and reports the sums that are left, and raises the first error. As soon as it
        begins, other calls raise `NotCounted("CLOSED")`."""
        self.session.close(time.monotonic() + END_SECONDS)

    def __enter__(self) -> Counterfoil:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Latch:
    """An event that its maker sets once, and that other threads wait for: a lock that is held until then."""

    def __init__(self) -> None:
        self._lock, self._thread = threading.Lock(), threading.get_ident()
        self._lock.acquire()
        self.set = self._lock.release

    async def wait_until(self, deadline: float | None) -> bool:
        if self._thread == threading.get_ident():
            raise RuntimeError("the handler of a signal, or a callback, waits for the call it is in")
        is_set = self._lock.acquire(timeout=-1 if deadline is None else max(deadline - time.monotonic(), 0))
        if is_set:
            self._lock.release()
        return is_set


class Process(Session):
    """The session of one process. A forked child makes its own."""

    latch = Latch
    _thread: threading.Thread | None = None

    def __init__(self, client: Counterfoil) -> None:
        super().__init__(client)
        self._awake = threading.Event()

    async def execute(self, words: tuple[Any, ...], deadline: float) -> Any:
        return self.redis.execute_command(*words)

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    async def run(self, function: Callable[..., Any], *args: Any, seconds: float | None = None) -> Any:
        return function(*args)

    def spawn(self, function: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], bool]:
        thread = threading.Thread(target=lambda: run(function()), name="counterfoil probe", daemon=True)
        with suppress(RuntimeError):  # there are too many threads, or Python exits
            thread.start()
        return thread.is_alive

    def wake(self) -> None:
        """Starts the thread that sends sums, or wakes it. Sends them itself if the process will end without hooks."""
        if _exit.is_sudden():
            for sums in self.sums:
                run(sums.send(self.client.deadline()))
            if not self.has_sums:
                return
        self._awake.set()
        if not self._thread or not self._thread.is_alive():
            _exit.register(self)
            self._thread = threading.Thread(target=self._send_sums, name="counterfoil", daemon=True)
            with suppress(RuntimeError):  # there are too many threads, or Python exits
                self._thread.start()

    def close(self, deadline: float) -> None:
        self.is_closed = True
        self._awake.set()
        try:
            run(self.end(deadline))
        finally:
            # sums are left only after an interrupt: then the exit of the process sends them
            if not self.has_sums:
                _exit.unregister(self)
                if self.client.is_own and self._redis:
                    self._redis.close()

    def _send_sums(self) -> None:
        # greenlets may start several of these threads at a time: all but the last one return
        while self._thread is threading.current_thread() and not self.is_closed:
            self._awake.wait()
            self._awake.clear()
            run(self.send_sums())
