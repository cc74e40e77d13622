"""Exact values, while hits are on their way to the database."""

import time
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Tuple

from ._base import Base, D
from ._errors import Misconfigured, NotCounted
from ._family import EXPLANATIONS, PAUSE_SECONDS, ROUNDS, Family, id_bytes
from ._sources import Table
from ._steps import Run, Sleep, Steps

COUNTERFOIL_TABLE = "counterfoil_values", "id", "value"


class Pending(NamedTuple):
    """What Redis has pending of an id in one partition."""

    incarnation: int
    seq: int
    nonce: int
    in_flight: bool
    batch: int
    buffer: int


class ExactValues(Family[D]):
    def __init__(self, client: Base[D], name: str, table: Optional[Table] = None) -> None:
        super().__init__(client, name)
        self._table = table

    def exact(self, id: str) -> Steps[int]:
        word = id_bytes(id)
        if self.client.sources.database is None:
            return (yield from self.from_daemon("values", id))
        partition, description = yield from self.described(word)
        partitions = range(description.partitions) if description.settings.get("wide") else [partition]
        for _ in range(ROUNDS):
            reads = yield from self._read(partitions, word)
            value, ledgers = _parse((yield Run(self.client.sources.rows, self._statement(id, word, reads))), self.name)
            deltas = [_missing(pending, ledgers.get(number, (0, 0, None)), word) for number, pending in reads.items()]
            # a crash of Redis may revert an incarnation as long as no batch of it is in the ledger
            unsure = [number for number in reads if number not in ledgers and (reads[number].batch or reads[number].buffer)]
            again = yield from self._read(unsure, word)
            if None not in deltas and all(again[number].incarnation == reads[number].incarnation for number in unsure):
                return value + sum(delta or 0 for delta in deltas)
            yield Sleep(PAUSE_SECONDS)
        raise NotCounted("SET BACK", "the database is ahead of Redis, which was set back", temporary=True)

    def from_daemon(self, path: str, id: str) -> Steps[int]:
        deadline = self.client.deadline()
        while True:
            try:
                return int((yield Run(self.client.sources.get, (path, self.name, id))))
            except NotCounted:
                if time.monotonic() + PAUSE_SECONDS >= deadline:
                    raise
            yield Sleep(PAUSE_SECONDS)

    def _read(self, partitions: Iterable[int], word: bytes) -> Steps[Dict[int, Pending]]:
        reads = {}
        for number in partitions:
            _, incarnation, seq, nonce, *rest = yield from self.read("buffered_read", self.keys(number, "buffer", "batch", "meta"), [word])
            in_flight, batch, buffer = map(int, rest)
            reads[number] = Pending(int(incarnation or "0", 16), int(seq), int(nonce or "0", 16), bool(in_flight), batch, buffer)
        return reads

    def _statement(self, id: str, word: bytes, reads: Dict[int, Pending]) -> Tuple[str, List[Any]]:
        table, key, value = (".".join(f"`{part}`" for part in name.split(".")) for name in self._table or COUNTERFOIL_TABLE)
        statement = (
            f"SELECT COALESCE(v.{value}, 0), l.partition_no, l.seq, l.nonce, l.position FROM counterfoil_families f"
            f" LEFT JOIN {table} v ON v.{key} = %s{'' if self._table else ' AND v.family = f.number'}"
            " LEFT JOIN counterfoil_ledger l ON l.family = f.number"
            f" AND (l.partition_no, l.incarnation) IN ({', '.join(['(%s, %s)'] * len(reads))})"
            " WHERE f.namespace = %s AND f.name = %s"
        )
        ledgers = [number for partition, pending in reads.items() for number in (partition, pending.incarnation)]
        return statement, [id if self._table else word, *ledgers, *self.name.split("/")]


Ledger = Tuple[int, int, Optional[bytes]]  # seq, nonce, position


def _parse(rows: List[List[Any]], name: str) -> Tuple[int, Dict[int, Ledger]]:
    """The value, and the ledger of each partition that has one."""
    if not rows:
        raise Misconfigured("UNCONFIGURED", f"{name} is not in the database: " + EXPLANATIONS["UNCONFIGURED"])
    return int(rows[0][0]), {
        int(partition): (int(seq), int(nonce), position.encode() if isinstance(position, str) else position)
        for _, partition, seq, nonce, position in rows
        if partition is not None
    }


def _missing(pending: Pending, ledger: Ledger, word: bytes) -> Optional[int]:
    """What the value in the database lacks; None if a newer batch landed in between."""
    applied, nonce, position = ledger
    if applied > pending.seq:
        return None
    if applied == pending.seq and applied and nonce != pending.nonce:
        raise NotCounted("SET BACK", "Redis was set back; the daemon resets the partition within 30 s", temporary=True)
    if applied == pending.seq and position is None:
        return pending.buffer
    if applied == pending.seq and position is not None and pending.in_flight:
        return pending.buffer if word <= position else pending.batch + pending.buffer
    if applied == pending.seq - 1 and position is None and pending.in_flight:
        return pending.batch + pending.buffer
    raise NotCounted("BEHIND", "this copy of the database is behind: read from the primary", temporary=True)
