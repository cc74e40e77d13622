"""The client for asyncio: calls are coroutines, and concurrent ones share calls to Redis."""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
import time
from typing import Any, Callable, Coroutine

import redis.asyncio

from ._client import Client, Session
from ._errors import Misconfigured
from ._family import Awaiting, T

if sys.version_info >= (3, 11):
    from asyncio import timeout
else:
    from async_timeout import timeout  # which redis-py needs, too

ATTEMPT_SECONDS = 1


class Counterfoil(Client[Awaiting]):
    """The counters of a namespace, over a `redis.asyncio.Redis` or `redis.asyncio.RedisCluster` of the
    application.

    Like the client it belongs to one event loop; one that was made by `connect` may be used in several. Give
    the Redis client a `socket_timeout`. `close` it, or use it in an `async with` block, to send what `later`
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
            for other in list(self.sessions):  # other threads have loops of their own
                if other[0].is_closed():
                    self.sessions.pop(other, None)
            self.sessions[key] = Loop(self)
        return self.sessions[key]

    async def close(self) -> None:
        """Sends what `later` took, and closes the connections that are its own. As soon as it begins, `later`
        raises `NotCounted("CLOSED")`; what cannot be sent is dropped and reported."""
        await self.session.close()

    async def __aenter__(self) -> Counterfoil:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Loop(Session):
    """What belongs to one event loop."""

    latch = asyncio.Event
    sleep = staticmethod(asyncio.sleep)
    _sender: asyncio.Task[None] | None = None

    async def execute(self, words: tuple[Any, ...], deadline: float) -> Any:
        # the library may repeat calls for minutes
        async with timeout(max(deadline - time.monotonic(), ATTEMPT_SECONDS)):
            return await self.redis.execute_command(*words)

    async def run(self, function: Callable[..., Any], *args: Any) -> Any:
        if inspect.iscoroutinefunction(function):
            return await function(*args)
        return await asyncio.to_thread(function, *args)

    def wake(self) -> None:
        """Starts the task that sends sums."""
        if self._sender is None or self._sender.done():
            self._sender = asyncio.get_running_loop().create_task(self._send_sums())

    async def close(self) -> None:
        self.is_closed = True
        try:
            await self.flush(self.sums)
        finally:
            if self._sender:
                self._sender.cancel()
                await asyncio.wait([self._sender])
            if self.client.is_own and self._redis:
                await self._redis.aclose()

    async def _send_sums(self) -> None:
        try:
            await self.send_sums()
        except asyncio.CancelledError:  # asyncio.run ends, and waits for this task
            await self.flush(self.sums)
