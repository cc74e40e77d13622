"""Calls of visitors families."""

from datetime import date
from typing import Any, List, Tuple, Union

from ._errors import NotCounted, value_of
from ._family import Call, Description, id_bytes, refused, visitor_bytes
from ._steps import Commit, Entry, Steps
from ._value import ExactValues

VISITORS = 500


class VisitorsFamily(ExactValues):
    kind = "visitors"

    def first_visit(self, scope: str, day: Union[str, date], visitor: Union[str, bytes]) -> Steps[bool]:
        change = id_bytes(_id(scope, day)), visitor_bytes(visitor)
        partition = yield from self.partition(change[0])
        queue = self._queues.get(partition) or self.queue(partition, VISITORS, lambda changes: self._count(partition, changes))
        entry = Entry(change)
        queue.waiting.append(entry)
        yield Commit([(queue, entry)])
        return bool(value_of(entry.result))

    def value_of_day(self, scope: str, day: Union[str, date]) -> Steps[int]:
        return self.value(_id(scope, day))

    def _count(self, partition: int, changes: List[Tuple[bytes, bytes]]) -> Steps[List[Any]]:
        def call(description: Description) -> Call:
            self.grouped(description, (id for id, _ in changes), partition)
            keys = self.keys(partition, "buffer", "meta") + [key + id for id, _ in changes for key in self.keys(partition, "seen:")]
            args: List[Any] = [description.settings["remember"], len(changes)]
            for id, visitor in changes:
                args += [id, 1, visitor]
            return Call("visitors_first", keys, args)

        status, words, _ = yield from self.count(self.home(partition), call)
        results = words if status == b"DUP" else words[1:]
        return [refused(word) if isinstance(word, bytes) else word for word in results]


def _id(scope: str, day: Union[str, date]) -> str:
    try:
        return f"{scope}/{date.fromisoformat(str(day)).isoformat()}"
    except ValueError as error:
        raise NotCounted("BADID", f"expected a day as YYYY-MM-DD, not {day!r}") from error
