"""The protocol is written once, as generators that yield what they need done. A driver does it, blocking or with asyncio."""

from __future__ import annotations

from collections import deque
from typing import Any, Callable, Generator, Hashable, NamedTuple, TypeVar, Union

from ._errors import CounterfoilError, OutcomeUnknown

T = TypeVar("T")
INTERRUPTED: Any = OutcomeUnknown("INTERRUPTED")


class Command(NamedTuple):
    """Sends a command to Redis once, and returns its reply."""

    words: tuple[Any, ...]
    deadline: float


class Sleep(NamedTuple):
    seconds: float


class Run(NamedTuple):
    """Calls a function that may block, or that is a coroutine function of the application."""

    function: Callable[..., Any]
    args: tuple[Any, ...]


class Share:
    """Makes the steps, or waits for the caller in this process that is making those of the same key."""

    def __init__(self, key: Hashable, steps: Steps[Any]) -> None:
        self.key, self.steps = key, steps
        self.cut: Step | None = None  # where a cancelled task left the steps


Step = Union[Command, Sleep, Run, Share]
Steps = Generator[Step, Any, T]


class Entry:
    """A change in a queue. The `result`, a value or an error, is set when it is `settled`."""

    __slots__ = ("change", "settled", "result")

    def __init__(self, change: Any) -> None:
        self.change, self.settled = change, False
        self.result: Any = None


class Queue:
    """Group commit: one call at a time, of the changes that arrived while the one before was under way."""

    def __init__(self, limit: int, count: Callable[[Queue, list[Any]], Steps[list[Any]]]) -> None:
        self.waiting: deque[Entry] = deque()
        self.caller, self.n = "", 0  # a random name, and the number of its last call
        self._limit, self._count = limit, count

    def commit(self) -> Steps[None]:
        batch = [self.waiting.popleft() for _ in range(min(len(self.waiting), self._limit))]
        results = [INTERRUPTED] * len(batch)
        try:
            results = yield from self._count(self, [entry.change for entry in batch])
        except CounterfoilError as error:
            results = [error] * len(batch)
        finally:
            for entry, result in zip(batch, results):
                entry.result, entry.settled = result, True
