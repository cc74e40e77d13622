"""Visitors: distinct visitors of a scope on each day."""

from datetime import date
from typing import Any, Dict, List, Union

from ._base import D, call
from ._errors import NotCounted
from ._family import Description, Words, id_bytes, visitor_bytes
from ._steps import Steps
from ._value import ExactValues


class Visitors(ExactValues[D]):
    """Distinct visitors of a scope on each day."""

    kind = "visitors"
    limit = 500

    @call
    def first_visit(self, scope: str, day: Union[str, date], visitor: Union[str, bytes]) -> Steps[bool]:
        """Counts a visitor once for the scope and the day (`YYYY-MM-DD`). Returns whether this is the first visit."""
        return bool((yield from self.change(id_bytes(_id(scope, day)), visitor_bytes(visitor))))

    @call
    def value(self, scope: str, day: Union[str, date]) -> Steps[int]:
        """Returns the exact number of visitors."""
        return (yield from self.exact(_id(scope, day)))

    def encode(self, description: Description, groups: Dict[int, List[Any]]) -> Words:
        [(partition, changes)] = groups.items()
        seen = self.keys(partition, "seen:")[0]
        keys = self.keys(partition, "buffer", "meta") + [seen + id for id, _ in changes]
        args = [description.settings["remember"], len(changes), *(word for id, visitor in changes for word in (id, 1, visitor))]
        return "visitors_first", keys, args

    def decode(self, status: bytes, words: List[Any], groups: Dict[int, List[Any]]) -> List[Any]:
        return words if status == b"DUP" else words[1:]


def _id(scope: str, day: Union[str, date]) -> str:
    try:
        return f"{scope}/{date.fromisoformat(str(day)).isoformat()}"
    except ValueError as error:
        raise NotCounted("BADID", f"expected a day as YYYY-MM-DD, not {day!r}") from error
