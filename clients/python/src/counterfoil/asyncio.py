"""The client for asyncio: calls are coroutines, and concurrent ones share calls to Redis."""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
import time
from typing import Any, Callable, Coroutine

import redis.asyncio

from ._client import END_SECONDS, Client, Session
from ._errors import Misconfigured
from ._family import Awaiting, T

if sys.version_info >= (3, 11):
    from asyncio import timeout
else:
    from async_timeout import timeout  # a dependency of redis-py on these versions

ATTEMPT_SECONDS = 0.1  # the shortest time that an attempt gets


class Counterfoil(Client[Awaiting]):
    """The counters of a namespace, over a `redis.asyncio.Redis` or `redis.asyncio.RedisCluster` of the
    application.

    It belongs to one event loop, as the Redis client does; one that was made by `connect` may be used in several.
    Give the Redis client a `socket_timeout`. `close` it, or use it in an `async with` block, to send what `later`
    took. The end of `asyncio.run` sends it as well, except what `later` took after the last `await`.
    """

    library = redis.asyncio

    @staticmethod
    def run(coroutine: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        return coroutine

    @property
    def session(self) -> Any:
        key = asyncio.get_running_loop(), os.getpid()
        if key not in self.sessions:
            if self.sessions and not self.is_own:
                raise Misconfigured("EVENT LOOP", "the Redis client is of another event loop: use connect")
            for other in list(self.sessions):  # a copy, since other threads add the sessions of their loops
                if other[0].is_closed():
                    self.sessions.pop(other, None)
            self.sessions[key] = Loop(self)
        return self.sessions[key]

    async def flush(self) -> None:
        """Sends what `later` took in all families, and raises the first error of what was not counted since the
        last flush. Waits for at most `retry_for`."""
        session = self.open_session
        await session.flush(session.sums)

    async def close(self) -> None:
        """Sends what `later` took, and closes the connections that are its own. While Redis is unreachable it tries
        again for 5 s; then it drops and reports the sums that are left, and raises the first error. As soon as it
        begins, other calls raise `NotCounted("CLOSED")`."""
        await self.session.close()

    async def __aenter__(self) -> Counterfoil:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Latch(asyncio.Event):
    """An event that is set once, and that tasks wait for until a deadline."""

    async def wait_until(self, deadline: float | None) -> bool:
        if deadline is None:
            return await self.wait()
        try:
            async with timeout(deadline - time.monotonic()):
                return await self.wait()
        except asyncio.TimeoutError:
            return False


class Loop(Session):
    """The session of one event loop."""

    latch = Latch
    sleep = staticmethod(asyncio.sleep)
    _is_sending: Callable[[], bool] | None = None

    def __init__(self, client: Counterfoil) -> None:
        super().__init__(client)
        self._tasks: set[asyncio.Task[None]] = set()

    async def execute(self, words: tuple[Any, ...], deadline: float) -> Any:
        # an application's client may repeat calls for minutes
        async with timeout(max(deadline - time.monotonic(), ATTEMPT_SECONDS)):
            return await self.redis.execute_command(*words)

    async def run(self, function: Callable[..., Any], *args: Any, seconds: float | None = None) -> Any:
        async with timeout(seconds):
            if inspect.iscoroutinefunction(function):
                return await function(*args)
            return await asyncio.to_thread(function, *args)

    def spawn(self, function: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], bool]:
        task = asyncio.get_running_loop().create_task(function())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return lambda: not task.done()

    def wake(self) -> None:
        """Starts the task that sends sums."""
        if not self._is_sending or not self._is_sending():
            self._is_sending = self.spawn(self._send_sums)

    async def close(self) -> None:
        self.is_closed = True
        try:
            await self.end(time.monotonic() + END_SECONDS)
        finally:
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)
            if self.client.is_own and self._redis:
                await self._redis.aclose()

    async def _send_sums(self) -> None:
        try:
            await self.send_sums()
        except asyncio.CancelledError:  # at its end asyncio.run cancels this task, and waits for it
            await self.end(time.monotonic() + END_SECONDS)
