"""Exact values, while hits are on their way to the database."""

from __future__ import annotations

import json
import time
from contextlib import closing
from typing import Any, Iterable, NamedTuple, Tuple
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import ProxyHandler, Request, build_opener

from ._channel import PAUSE_SECONDS
from ._errors import CounterfoilError, Misconfigured, NotCounted
from ._family import ROUNDS, D, Family, id_bytes

HTTP_SECONDS = 12  # the daemon replies within 10
Table = Tuple[str, str, str]


class Pending(NamedTuple):
    """What Redis has pending of an id in one partition."""

    incarnation: int
    seq: int
    nonce: int
    in_flight: int
    batch: int
    buffer: int


class ExactValues(Family[D]):
    def __init__(self, client: Any, name: str, table: Table | None = None) -> None:
        super().__init__(client, name)
        self._table = table

    async def exact(self, id: str) -> int:
        word = id_bytes(id)
        if self.client.database is None:
            return await self.from_daemon(id)
        partition, description = await self.channel.described(word)
        partitions = range(description.partitions) if description.settings.get("wide") else [partition]
        for _ in range(ROUNDS):
            reads = await self._read(partitions, word)
            rows = await self.client.session.run(rows_of, self.client, *self._statement(id, word, reads))
            if not rows:
                raise Misconfigured("UNCONFIGURED", f"{self.name} is not in the database")
            ledgers = {row[1]: row[2:] for row in rows if row[1] is not None}
            deltas = [_missing(word, pending, *ledgers.get(number, (0, 0, None))) for number, pending in reads.items()]
            # a crash of Redis may revert an incarnation as long as no batch of it is in the ledger
            unsure = [number for number in reads if number not in ledgers and (reads[number].batch or reads[number].buffer)]
            again = await self._read(unsure, word)
            if None not in deltas and all(again[number].incarnation == reads[number].incarnation for number in unsure):
                return int(rows[0][0]) + sum(delta or 0 for delta in deltas)
            await self.client.session.sleep(PAUSE_SECONDS)
        raise NotCounted("SET BACK", "the database is ahead of Redis, which was set back", temporary=True)

    async def from_daemon(self, id: str) -> int:
        deadline = self.client.deadline()
        while True:
            try:
                return int(await self.client.session.run(daemon_value, self.client, self.name, id))
            except NotCounted:
                if time.monotonic() + PAUSE_SECONDS >= deadline:
                    raise
            await self.client.session.sleep(PAUSE_SECONDS)

    async def _read(self, partitions: Iterable[int], word: bytes) -> dict[int, Pending]:
        reads = {}
        for number in partitions:
            _, incarnation, seq, nonce, *rest = await self.channel.read("buffered_read", self.keys(number, "buffer", "batch", "meta"), [word])
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


def daemon_value(client: Any, family: str, id: str) -> int:
    """Gets the value of an id from the daemon."""
    if not client.daemon:
        raise Misconfigured("NO SOURCE", "values are read from the daemon or the database: pass daemon=URL or database=")
    url = f"{client.daemon}/api/v1/values?{urlencode({'family': family, 'id': id})}"
    headers = {"Authorization": f"Bearer {client.token}"} if client.token else {}
    try:
        with build_opener(ProxyHandler({})).open(Request(url, headers=headers), timeout=HTTP_SECONDS) as response:
            return int(json.load(response)["values"][0]["value"])
    except HTTPError as error:
        with error:
            explanation = f"the daemon replied {error.code}: {error.read(2000).decode(errors='replace')}"
        if error.code == 429 or error.code >= 500:
            raise NotCounted("DAEMON", explanation, temporary=True) from error
        raise Misconfigured({404: "UNCONFIGURED", 409: "MISMATCH"}.get(error.code, "DAEMON"), explanation) from error
    except Exception as error:
        raise NotCounted("DAEMON", f"{url}: {error}", temporary=True) from error


def rows_of(client: Any, statement: str, parameters: list[Any]) -> list[list[Any]]:
    """Executes one statement in the database, outside of any transaction."""
    try:
        if callable(client.database):
            with closing(client.database()) as connection:
                connection.rollback()  # one from a pool may have an old snapshot
                return _fetch(connection, statement, parameters)
        with client.database_lock:  # a connection is for one thread at a time
            _check_autocommit(client.database)
            return _fetch(client.database, statement, parameters)
    except CounterfoilError:
        raise
    except Exception as error:
        raise NotCounted("DATABASE", str(error), temporary=True) from error


def _check_autocommit(connection: Any) -> None:
    # PyMySQL has the status of the server, mysql-connector in_transaction
    is_open = getattr(connection, "server_status", 0) & 1 or getattr(connection, "in_transaction", False)
    if is_open or _fetch(connection, "SELECT @@autocommit", [])[0][0] != 1:
        raise Misconfigured("DATABASE", "the connection has a transaction: pass a function that returns one without")


def _fetch(connection: Any, statement: str, parameters: list[Any]) -> list[list[Any]]:
    with closing(connection.cursor()) as cursor:
        cursor.execute(statement, parameters)
        return [list(row.values() if isinstance(row, dict) else row) for row in cursor.fetchall()]
