"""A family, and what the calls of all kinds have in common."""

from __future__ import annotations

import functools
import re
import zlib
from typing import Any, Callable, Coroutine, Generic, TypeVar, overload

from typing_extensions import Concatenate, ParamSpec, Self

from ._channel import Channel, Description, Keys, Words
from ._errors import Misconfigured, NotCounted

ROUNDS = 10


class Blocking:
    """Marks a client whose calls return their result."""


class Awaiting:
    """Marks a client of asyncio, whose calls are coroutines."""


D = TypeVar("D")  # one of both
P = ParamSpec("P")
T = TypeVar("T")


class call(Generic[P, T]):
    """Makes a method of a coroutine function: one that returns the result in a blocking client."""

    def __init__(self, function: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> None:
        self.function = function
        functools.update_wrapper(self, function)  # type: ignore[arg-type]

    @overload
    def __get__(self, family: None, owner: Any) -> Self: ...
    @overload
    def __get__(self, family: Family[Blocking], owner: Any) -> Callable[P, T]: ...
    @overload
    def __get__(self, family: Family[Awaiting], owner: Any) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, family: Any, owner: Any) -> Any:
        if family is None:
            return self
        return lambda *args, **options: family.client.run(self.function(family, *args, **options))


class Family(Generic[D]):
    """A family. The class of each kind has its calls, and makes their keys and arguments."""

    kind = ""
    limit = 1000  # changes of a call
    has_total = False  # a reply has a total before the words of the changes
    dup_names_refused = False  # the reply to a repeat lists what was refused, not all words

    def __init__(self, client: Any, name: str) -> None:
        self.client, self.name = client, f"{client.namespace}/{name}"
        if not re.fullmatch("[a-z0-9_.-]{1,64}/[a-z0-9_.-]{1,64}", self.name):
            raise Misconfigured("NAME", f"expected names of 1 to 64 characters a-z, 0-9, _, . and -, not {self.name}")

    @property
    def channel(self) -> Channel:
        """Its calls in this process or event loop."""
        session, key = self.client.session, (self.kind, self.name)
        channel: Channel | None = session.channels.get(key)
        return channel or session.channels.setdefault(key, Channel(self, session))

    def keys(self, partition: int, *names: str) -> Keys:
        return _keys(self.name, partition, *names)

    def partition(self, description: Description, change: Any) -> int:
        return zlib.crc32(change[0]) % description.partitions

    def part(self, settings: dict[str, Any], partition: int, changes: list[Any]) -> Words:
        """A call of changes of one partition."""
        raise NotImplementedError


@functools.lru_cache(1000)
def _keys(family: str, partition: int, *names: str) -> Keys:
    return tuple(f"cf1:{{{family}/{partition}}}:{name}".encode() for name in names)


def id_bytes(id: str, limit: int = 255) -> bytes:
    """Checks an id, a name or a page."""
    try:
        word = id.encode()
    except (AttributeError, UnicodeEncodeError):
        word = b""
    if not 0 < len(word) <= limit:
        raise NotCounted("BADID", f"expected a str of 1 to {limit} bytes, not {id!r}")
    return word


def visitor_bytes(visitor: str | bytes) -> bytes:
    return visitor if isinstance(visitor, bytes) and 0 < len(visitor) <= 255 else id_bytes(visitor)  # type: ignore[arg-type]


def integer(number: int, lowest: int = -(2**63)) -> int:
    """Checks a change or a value."""
    if not isinstance(number, int) or isinstance(number, bool) or not lowest <= number < 2**63:
        raise NotCounted("BADARG", f"expected an integer from {lowest} to {2**63 - 1}, not {number!r}")
    return number
