"""The blocking client."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from typing import Any, Hashable, TypeVar

import redis
import redis.client
import redis.cluster
from redis.retry import Retry

from ._base import Blocking
from ._client import Client
from ._errors import CounterfoilError, value_of
from ._family import PAUSE_SECONDS
from ._steps import Command, Run, Share, Sleep, Step, Steps

T = TypeVar("T")


class Counterfoil(Client[Blocking]):
    """The counters of a namespace, over a `redis.Redis` or `redis.RedisCluster` of the application.

    Threads may share it, and so may processes that are forked later. Give the Redis client a `socket_timeout`. `close` it, or use
    it in a `with` block, to send what `later` took; a normal exit of the process does the same.
    """

    library, retry = redis, Retry

    @property
    def session(self) -> Process:
        pid = os.getpid()
        session: Process | None = self._sessions.get(pid)
        return session or self._sessions.setdefault(pid, Process(self))

    def close(self) -> None:
        """Sends what `later` took, and closes the connections that are its own."""
        self.session.close()

    def __enter__(self) -> Counterfoil:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Process:
    """What belongs to one process; a child makes its own. Runs the steps of calls."""

    def __init__(self, owner: Counterfoil) -> None:
        self.states: dict[Hashable, Any] = {}
        self.sums: dict[str, Any] = {}
        self._owner = owner
        self._pid = os.getpid()
        self._client = owner.client
        self._lock = threading.Lock()
        self._shared: dict[Hashable, _Flight] = {}
        self._awake = threading.Event()
        self._thread: threading.Thread | None = None

    def run(self, steps: Steps[T]) -> T:
        """Runs the steps of a call, and returns its result."""
        reply: Any = None
        error: BaseException | None = None
        while True:
            try:
                step = steps.throw(error) if error else steps.send(reply)
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]
            reply = error = None
            try:
                reply = self._take(step)
            except BaseException as failure:  # after a KeyboardInterrupt the steps end in order, too
                error = failure

    def wake(self) -> None:
        """Starts the thread that sends sums, or wakes it."""
        self._awake.set()
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._send_sums, name="counterfoil", daemon=True)
                    self._thread.start()
                    atexit.register(self._exit)

    def close(self) -> None:
        atexit.unregister(self._exit)
        self._thread = None
        self._awake.set()
        try:
            for sums in list(self.sums.values()):
                self.run(sums.flush())
        finally:
            if self._owner.is_own and self._client:
                self._client.close()

    def _take(self, step: Step) -> Any:
        if isinstance(step, Share):
            return self._share(step)
        if isinstance(step, Command):
            return (self._client or self._connected()).execute_command(*step.words)
        return step.function(*step.args) if isinstance(step, Run) else time.sleep(step.seconds)

    def _share(self, step: Share) -> Any:
        mine = _Flight()
        flight = self._shared.get(step.key) or self._shared.setdefault(step.key, mine)
        if flight is mine:
            try:
                mine.result = self.run(step.steps)
            except BaseException as error:
                mine.result = error if isinstance(error, Exception) else None  # others go on after a KeyboardInterrupt
                raise
            finally:
                del self._shared[step.key]
                mine.under_way.release()
        else:
            with flight.under_way:
                pass
        return value_of(flight.result)

    def _connected(self) -> Any:
        with self._lock:
            if not self._client and self._owner.make_client:
                self._client = self._owner.make_client()
        return self._client

    def _send_sums(self) -> None:
        while self._thread is threading.current_thread():
            self._awake.wait()
            self._awake.clear()
            time.sleep(self._owner.later_every)
            for sums in list(self.sums.values()):
                self.run(sums.send())
                if sums.temporary:  # until Redis is available
                    time.sleep(PAUSE_SECONDS)
                    self._awake.set()

    def _exit(self) -> None:
        try:
            if self._pid == os.getpid():
                self.close()
        except CounterfoilError as error:
            logging.getLogger("counterfoil").error("at exit: %s", error)


class _Flight:
    """Steps under way, which others wait for."""

    def __init__(self) -> None:
        self.result: Any = None
        self.under_way = threading.Lock()
        self.under_way.acquire()
