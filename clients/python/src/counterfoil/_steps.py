"""The protocol is written once, as generators that yield what they need done: a driver does it, blocking or with asyncio."""

from collections import deque
from typing import Any, Callable, Deque, Generator, Hashable, List, NamedTuple, Sequence, Tuple, TypeVar, Union

from ._errors import CounterfoilError, OutcomeUnknown

T = TypeVar("T")


class Command(NamedTuple):
    """Sends a command to Redis once, and returns its reply."""

    words: Tuple[Any, ...]


class Sleep(NamedTuple):
    seconds: float


class Run(NamedTuple):
    """Calls a function that may block, or that is a coroutine function of an asyncio application."""

    function: Callable[..., Any]
    args: Tuple[Any, ...]


class Share(NamedTuple):
    """Makes the steps, or waits for a caller in this process that is making those of the same key."""

    key: Hashable
    steps: "Steps[Any]"


class Commit(NamedTuple):
    """Waits until calls of the queues have settled the entries, which were appended to them."""

    entries: Sequence[Tuple["Queue", "Entry"]]


Step = Union[Command, Sleep, Run, Share, Commit]
Steps = Generator[Step, Any, T]


class Entry:
    """One change in a queue. `result` is set when `settled`: a value or an error."""

    __slots__ = ("change", "settled", "result", "future")

    def __init__(self, change: Any) -> None:
        self.change = change
        self.settled = False
        self.result: Any = None
        self.future: Any = None


class Queue:
    """Group commit: changes that arrive while a call is under way share the next one.

    `call` makes a call of at most `limit` changes and returns a result for each. `guard` belongs to the driver, which lets
    one `commit` run at a time.
    """

    def __init__(self, limit: int, call: Callable[[List[Any]], Steps[List[Any]]], guard: Any) -> None:
        self._limit = limit
        self._call = call
        self.guard = guard
        self.waiting: Deque[Entry] = deque()

    def commit(self) -> Steps[List[Entry]]:
        """Makes one call of what is waiting, and returns the entries that it settled."""
        count = min(len(self.waiting), self._limit)
        batch = [self.waiting.popleft() for _ in range(count)]
        results: List[Any] = [OutcomeUnknown("INTERRUPTED", "the call was interrupted")] * count
        try:
            results = yield from self._call([entry.change for entry in batch])
        except CounterfoilError as error:
            results = [error] * count
        finally:
            for entry, result in zip(batch, results):
                entry.result = result
                entry.settled = True
        return batch
