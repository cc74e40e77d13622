"""The protocol is written once, as generators that yield what they need done. A driver does it, blocking or with asyncio."""

from collections import deque
from typing import Any, Callable, Deque, Dict, Generator, Hashable, List, NamedTuple, Optional, Tuple, TypeVar, Union

from ._errors import CounterfoilError, OutcomeUnknown

T = TypeVar("T")


class Command(NamedTuple):
    """Sends a command to Redis once, and returns its reply."""

    words: Tuple[Any, ...]


class Sleep(NamedTuple):
    seconds: float


class Run(NamedTuple):
    """Calls a function that may block, or that is a coroutine function of the application."""

    function: Callable[..., Any]
    args: Tuple[Any, ...]


class Share:
    """Makes the steps, or waits for the caller in this process that is making those of the same key."""

    __slots__ = ("key", "steps", "cut")

    def __init__(self, key: Hashable, steps: "Steps[Any]") -> None:
        self.key = key
        self.steps = steps
        self.cut: Optional[Step] = None  # where a cancelled task left the steps


Step = Union[Command, Sleep, Run, Share]
Steps = Generator[Step, Any, T]


class Entry:
    """A change in a queue. The `result`, a value or an error, is set when it is `settled`."""

    __slots__ = ("change", "settled", "result")

    def __init__(self, change: Any) -> None:
        self.change = change
        self.settled = False
        self.result: Any = None


class Queue:
    """Group commit: one call at a time, of the changes that arrived while the one before was under way."""

    def __init__(self, limit: int, count: Callable[["Queue", List[Any]], Steps[List[Any]]]) -> None:
        self.waiting: Deque[Entry] = deque()
        self.caller = ""  # a random name, for one call at a time
        self.n = 0
        self._limit = limit
        self._count = count

    def commit(self) -> Steps[None]:
        size = min(len(self.waiting), self._limit)
        batch = [self.waiting.popleft() for _ in range(size)]
        results: List[Any] = [OutcomeUnknown("INTERRUPTED")] * size
        try:
            results = yield from self._count(self, [entry.change for entry in batch])
        except CounterfoilError as error:
            results = [error] * size
        finally:
            for entry, result in zip(batch, results):
                entry.result, entry.settled = result, True


def settled(entries: Dict[Queue, Entry]) -> Steps[None]:
    """Waits until the last entry of each queue is settled, and makes calls as long as nobody else does."""
    for queue, entry in entries.items():
        while not entry.settled:
            yield Share(queue, queue.commit())
