"""Exact values, while hits are on their way to the database."""

from __future__ import annotations

import time
from typing import Any, Iterable, NamedTuple

from ._base import Base, D, Table
from ._errors import Misconfigured, NotCounted
from ._family import EXPLANATIONS, PAUSE_SECONDS, ROUNDS, Family, id_bytes
from ._steps import Run, Sleep, Steps


class Pending(NamedTuple):
    """What Redis has pending of an id in one partition."""

    incarnation: int
    seq: int
    nonce: int
    in_flight: int
    batch: int
    buffer: int


class ExactValues(Family[D]):
    def __init__(self, client: Base[D], name: str, table: Table | None = None) -> None:
        super().__init__(client, name)
        self._table = table

    def exact(self, id: str) -> Steps[int]:
        word = id_bytes(id)
        if self.client.database is None:
            return (yield from self.from_daemon(id))
        partition, description = yield from self.described(word)
        partitions = range(description.partitions) if description.settings.get("wide") else [partition]
        for _ in range(ROUNDS):
            reads = yield from self._read(partitions, word)
            rows = yield Run(self.client.rows, self._statement(id, word, reads))
            if not rows:
                raise Misconfigured("UNCONFIGURED", f"{self.name} is not in the database: " + EXPLANATIONS["UNCONFIGURED"])
            ledgers = {row[1]: row[2:] for row in rows if row[1] is not None}
            deltas = [_missing(word, pending, *ledgers.get(number, (0, 0, None))) for number, pending in reads.items()]
            # a crash of Redis may revert an incarnation as long as no batch of it is in the ledger
            unsure = [number for number in reads if number not in ledgers and (reads[number].batch or reads[number].buffer)]
            again = yield from self._read(unsure, word)
            if None not in deltas and all(again[number].incarnation == reads[number].incarnation for number in unsure):
                return int(rows[0][0]) + sum(delta or 0 for delta in deltas)
            yield Sleep(PAUSE_SECONDS)
        raise NotCounted("SET BACK", "the database is ahead of Redis, which was set back", temporary=True)

    def from_daemon(self, id: str) -> Steps[int]:
        deadline = self.client.deadline()
        while True:
            try:
                return int((yield Run(self.client.get, (self.name, id))))
            except NotCounted:
                if time.monotonic() + PAUSE_SECONDS >= deadline:
                    raise
            yield Sleep(PAUSE_SECONDS)

    def _read(self, partitions: Iterable[int], word: bytes) -> Steps[dict[int, Pending]]:
        reads = {}
        for number in partitions:
            _, incarnation, seq, nonce, *rest = yield from self.read("buffered_read", self.keys(number, "buffer", "batch", "meta"), [word])
            reads[number] = Pending(int(incarnation or "0", 16), int(seq), int(nonce or "0", 16), *map(int, rest))
        return reads

    def _statement(self, id: str, word: bytes, reads: dict[int, Pending]) -> tuple[str, list[Any]]:
        names = self._table or ("counterfoil_values", "id", "value")
        table, key, value = (".".join(f"`{part}`" for part in name.split(".")) for name in names)
        statement = (
            f"SELECT COALESCE(v.{value}, 0), l.partition_no, l.seq, l.nonce, l.position FROM counterfoil_families f"
            f" LEFT JOIN {table} v ON v.{key} = %s{'' if self._table else ' AND v.family = f.number'}"
            " LEFT JOIN counterfoil_ledger l ON l.family = f.number"
            f" AND (l.partition_no, l.incarnation) IN ({', '.join(['(%s, %s)'] * len(reads))})"
            " WHERE f.namespace = %s AND f.name = %s"
        )
        ledgers = [number for partition, pending in reads.items() for number in (partition, pending.incarnation)]
        return statement, [id if self._table else word, *ledgers, *self.name.split("/")]


def _missing(word: bytes, pending: Pending, applied: int, nonce: int, position: str | bytes | None) -> int | None:
    """What the value in the database lacks; None if a newer batch landed in between."""
    position = position.encode() if isinstance(position, str) else position
    if applied > pending.seq:
        return None
    if applied == pending.seq and applied and nonce != pending.nonce:
        raise NotCounted("SET BACK", "Redis was set back; the daemon resets the partition within 30 s", temporary=True)
    if applied == pending.seq and (position is None or pending.in_flight and word <= position):
        return pending.buffer
    if pending.in_flight and (applied == pending.seq or applied == pending.seq - 1 and position is None):
        return pending.batch + pending.buffer
    raise NotCounted("BEHIND", "this copy of the database is behind: read from the primary", temporary=True)
