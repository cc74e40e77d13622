"""The client for asyncio: calls are coroutines, and concurrent ones share calls to Redis."""

from __future__ import annotations

import asyncio
import inspect
import sys
import time
from typing import Any, Coroutine, Hashable, TypeVar

import redis.asyncio
import redis.asyncio.client
import redis.asyncio.cluster
from redis.asyncio.retry import Retry

from ._base import Awaiting
from ._client import Client
from ._errors import Misconfigured, value_of
from ._family import PAUSE_SECONDS
from ._steps import Command, Run, Share, Sleep, Step, Steps

if sys.version_info >= (3, 11):
    from asyncio import timeout
else:
    from async_timeout import timeout  # which redis-py needs, too

T = TypeVar("T")


class Counterfoil(Client[Awaiting]):
    """The counters of a namespace, over a `redis.asyncio.Redis` or `redis.asyncio.RedisCluster` of the application.

    Like the client it belongs to one event loop; one that was made by `connect` may be used in several. Give the Redis client a
    `socket_timeout`. `close` it, or use it in an `async with` block, to send what `later` took; the end of `asyncio.run` does the
    same.
    """

    library, retry = redis.asyncio, Retry

    @property
    def session(self) -> Loop:
        loop = asyncio.get_running_loop()
        session = self._sessions.get(loop)
        if session is None:
            if self._sessions and not self.is_own:
                raise Misconfigured("EVENT LOOP", "the Redis client was used in another event loop: make one in each, or use connect")
            self._sessions = {other: session for other, session in self._sessions.items() if not other.is_closed()}
            session = self._sessions[loop] = Loop(self, loop)
        return session

    async def close(self) -> None:
        """Sends what `later` took, and closes the connections that are its own."""
        await self.session.close()

    async def __aenter__(self) -> Counterfoil:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Loop:
    """What belongs to one event loop. Runs the steps of calls."""

    def __init__(self, owner: Counterfoil, loop: asyncio.AbstractEventLoop) -> None:
        self.states: dict[Hashable, Any] = {}
        self.sums: dict[str, Any] = {}
        self._owner = owner
        self._loop = loop
        self._client = owner.make_client() if owner.make_client else owner.client
        self._shared: dict[Hashable, list[asyncio.Future[Any]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._awake = asyncio.Event()
        self._later: asyncio.Task[None] | None = None

    async def run(self, steps: Steps[T], share: Share | None = None) -> T:
        """Runs the steps of a call, or those of a share from where a cancelled task left them."""
        reply: Any = None
        error: BaseException | None = None
        cut = share and share.cut
        if isinstance(cut, Command):
            error = redis.ConnectionError("the task was cancelled")
        while True:
            try:
                step = cut if cut and not error else steps.throw(error) if error else steps.send(reply)
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]
            reply = error = cut = None
            try:
                reply = await self._take(step)
            except asyncio.CancelledError:
                if share:
                    share.cut = step
                raise
            except BaseException as failure:
                error = failure

    def wake(self) -> None:
        """Starts the task that sends sums, or wakes it."""
        self._awake.set()
        if self._later is None or self._later.done():
            self._later = self._spawn(self._send_sums())

    async def close(self) -> None:
        try:
            await self._flush()
        finally:
            if self._later:
                self._later.cancel()
                await asyncio.wait([self._later])
            if self._owner.is_own:
                await (self._client.aclose if hasattr(self._client, "aclose") else self._client.close)()

    async def _take(self, step: Step) -> Any:
        if isinstance(step, Share):
            return await self._share(step)
        if isinstance(step, Command):
            async with timeout(step.deadline - time.monotonic()):  # the library may repeat calls for minutes
                return await self._client.execute_command(*step.words)
        if isinstance(step, Sleep):
            return await asyncio.sleep(step.seconds)
        if inspect.iscoroutinefunction(step.function):
            return await step.function(*step.args)
        return await asyncio.to_thread(step.function, *step.args)

    async def _share(self, step: Share) -> Any:
        waiters = self._shared.get(step.key)
        waiter = self._loop.create_future()
        if waiters is not None:
            waiters.append(waiter)
            return value_of(await waiter)
        self._shared[step.key] = [waiter]
        try:
            await self._lead(step)
        except asyncio.CancelledError:  # others wait for what this task began
            self._spawn(self._lead(step))
            raise
        return value_of(waiter.result())

    async def _lead(self, step: Share) -> None:
        try:
            result: Any = await self.run(step.steps, step)
        except Exception as error:
            result = error
        for waiter in self._shared.pop(step.key):
            if not waiter.done():
                waiter.set_result(result)

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _send_sums(self) -> None:
        try:
            while True:
                await self._awake.wait()
                self._awake.clear()
                await asyncio.sleep(self._owner.later_every)
                for sums in list(self.sums.values()):
                    await self.run(sums.send())
                    if sums.temporary:  # until Redis is available
                        await asyncio.sleep(PAUSE_SECONDS)
                        self._awake.set()
        except asyncio.CancelledError:  # asyncio.run ends, and waits for this task
            for sums in list(self.sums.values()):
                await self.run(sums.send())
                await self.run(sums.send())

    async def _flush(self) -> None:
        for sums in list(self.sums.values()):
            await self.run(sums.flush())
