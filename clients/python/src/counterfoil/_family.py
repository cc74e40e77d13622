"""A family, and what is common to those of all kinds."""

from __future__ import annotations

import functools
import zlib
from typing import Any, Callable, Coroutine, Generic, TypeVar, Union, overload

from typing_extensions import Concatenate, ParamSpec

from ._channel import Channel, Description, Keys, Request, Words
from ._errors import NotCounted


class Blocking:
    """Marks a client whose calls return their result."""


class Awaiting:
    """Marks a client of asyncio, whose calls are coroutines."""


D = TypeVar("D")  # Blocking or Awaiting
P = ParamSpec("P")
T = TypeVar("T")
Id = Union[str, int]  # an int is its decimal text


class call(Generic[P, T]):
    """Makes a method of a coroutine function. In a blocking client it runs the coroutine, and returns the result."""

    def __init__(self, function: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> None:
        self.function = function
        functools.update_wrapper(self, function)  # type: ignore[arg-type]

    @overload
    def __get__(self, family: Family[Blocking], owner: Any) -> Callable[P, T]: ...
    @overload
    def __get__(self, family: Family[Awaiting], owner: Any) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, family: Any, owner: Any) -> Any:
        if family is None:
            return self
        return lambda *args, **options: family.client.run(self.function(family, *args, **options))


class Family(Generic[D]):
    """A family. The class of each kind has its calls, and makes their keys and arguments.

    A change is a tuple: an id, a name or a page, perhaps more of a key, and at its end a number.
    """

    kind = ""
    limit = 100  # how many changes a call may have
    spans_partitions = False  # whether a call may count in several partitions, on a standalone server

    def __init__(self, client: Any, name: str) -> None:
        self.client, self.name = client, f"{client.namespace}/{name}"

    @property
    def session(self) -> Any:
        """The session of this process or event loop."""
        return self.client.open_session

    @property
    def channel(self) -> Channel:
        """The calls of the family in this process or event loop."""
        session, key = self.session, (self.kind, self.name)
        channel: Channel | None = session.channels.get(key)
        return channel or session.channels.setdefault(key, self.client.channel_type(self, session))

    def keys(self, partition: int, *names: str) -> Keys:
        return tuple(f"cf1:{{{self.name}/{partition}}}:{name}" for name in names)

    def checked(self, description: Description, change: Any) -> Any:
        """Returns a change whose id, name or page can have a row."""
        description.check(change[0])
        return change

    def partition(self, description: Description, change: Any, request: Request | None = None) -> int:
        return zlib.crc32(change[0].encode()) % description.partitions

    def part(self, settings: dict[str, Any], home: int, partition: int, changes: list[Any]) -> Words:
        """Returns the script of a call, with the keys and arguments of the changes in one partition."""
        raise NotImplementedError

    def shared(self, settings: dict[str, Any], changes: list[Any]) -> list[int]:
        """Returns for each change of a partition the number of its word in the reply, from 0."""
        return list(range(len(changes)))

    def first_args(self, settings: dict[str, Any], requests: int) -> list[Any]:
        """Returns the arguments in front of those of the partitions. `requests` is the number of named requests."""
        return []


class Later(Family[D]):
    """A family whose hits may be summed in the process."""

    def _later(self, *change: Any) -> None:
        channel = self.channel
        channel.check_known(change)
        channel.sums.take(change[:-1], change[-1])
        channel.session.wake()

    @call
    async def flush(self) -> None:
        """Sends what `later` took, and waits until it is counted. Raises the first error of what was not counted
        since the last flush."""
        await self.session.flush([self.channel.sums])


def valid(id: Id, limit: int = 255) -> str:
    """Checks an id, a name or a page, and returns it as text."""
    try:
        is_integer = isinstance(id, int) and not isinstance(id, bool)
        word = b"%d" % id if is_integer else id.encode()  # type: ignore[union-attr, str-format]
    except (AttributeError, UnicodeEncodeError):
        word = b""
    if not 0 < len(word) <= limit:
        raise NotCounted("BADID", f"expected a str of 1 to {limit} bytes or an int, not {id!r}")
    return word.decode()  # makes a plain str of an enum


def integer(number: int, lowest: int = -(2**63)) -> int:
    """Checks a change or a value."""
    if not isinstance(number, int) or isinstance(number, bool) or not lowest <= number < 2**63:
        raise NotCounted("BADARG", f"expected an integer from {lowest} to {2**63 - 1}, not {number!r}")
    return int(number)  # makes a plain int of an enum
