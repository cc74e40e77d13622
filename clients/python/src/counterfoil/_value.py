"""Exact values, while hits are on their way to the database."""

from __future__ import annotations

import re
import time
from contextlib import closing
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener

from ._errors import CounterfoilError, Misconfigured, NotCounted
from ._family import PAUSE_SECONDS, ROUNDS, D, Family, call, valid

HTTP_SECONDS = 12  # the daemon replies within 10


class Pending(NamedTuple):
    """What Redis has pending of an id in one partition."""

    incarnation: int
    seq: int
    nonce: int
    in_flight: int
    batch: int
    buffer: int

    def missing(self, word: bytes, applied: int, nonce: int, position: Any) -> int | None:
        """What the value in the database lacks; None if a newer batch landed in between."""
        position = position.encode() if isinstance(position, str) else position
        if applied > self.seq:
            return None
        if applied == self.seq and applied and nonce != self.nonce:
            raise NotCounted("SET BACK", "the daemon resets the partition within 30 s", temporary=True)
        if applied == self.seq and (position is None or self.in_flight and word <= position):
            return self.buffer
        if self.in_flight and (applied == self.seq or applied == self.seq - 1 and position is None):
            return self.batch + self.buffer
        raise NotCounted("BEHIND", "this copy of the database is behind: use the primary", temporary=True)


class ExactValues(Family[D]):
    @call
    async def value(self, id: str) -> int:
        """Returns the exact value, with what is not in MySQL yet."""
        return await self.exact(id)

    async def exact(self, id: str) -> int:
        id = valid(id)
        if self.client.database is None:
            return await self.from_daemon(id)
        partition, description = await self.channel.described(id)
        if description.settings.get("table") and not self.table:
            raise Misconfigured("NO TABLE", f"pass table=: the daemon stores the values of {self.name} in a table of yours")
        partitions = range(description.partitions) if description.settings.get("wide") else [partition]
        for _ in range(ROUNDS):
            reads = {at: await self._read(at, id) for at in partitions}
            rows = await self.client.session.run(rows_of, self.client, *self._statement(id, reads))
            if not rows:
                raise Misconfigured("UNCONFIGURED", f"{self.name} is not in the database")
            await self.channel.check_database(rows[0][5])
            ledgers = {row[1]: row[2:5] for row in rows if row[1] is not None}
            deltas = [one.missing(id.encode(), *ledgers.get(at, (0, 0, None))) for at, one in reads.items()]
            # a crash of Redis may revert an incarnation as long as no batch of it is in the ledger
            unsure = [at for at, one in reads.items() if at not in ledgers and (one.batch or one.buffer)]
            again = {at: await self._read(at, id) for at in unsure}
            is_sure = all(one.incarnation == reads[at].incarnation for at, one in again.items())
            if is_sure and None not in deltas:
                return int(rows[0][0]) + sum(delta or 0 for delta in deltas)
            await self.client.session.sleep(PAUSE_SECONDS)
        raise NotCounted("SET BACK", "the database is ahead of Redis, which was set back", temporary=True)

    async def from_daemon(self, id: str) -> int:
        """Returns the value that the daemon reads, and asks again while the daemon is unavailable."""
        client, deadline = self.client, self.client.deadline()
        if not client.daemon:
            raise Misconfigured("NO SOURCE", "pass daemon=URL; or database= for values, read_row= for rows")
        url = f"{client.daemon}/api/v1/values?{urlencode({'family': self.name, 'id': id})}"
        while True:
            code, body = await client.session.run(_get, url, client.token)
            value = re.search(r'"value": ?(-?\d+)[,}]', body) if code == 200 else None
            if value:
                return int(value[1])
            explanation = f"{url}: {code} {body[:2000]}"
            if 300 <= code < 500 and code != 429:
                raise Misconfigured({404: "UNCONFIGURED", 409: "MISMATCH"}.get(code, "DAEMON"), explanation)
            if time.monotonic() + PAUSE_SECONDS >= deadline:
                raise NotCounted("DAEMON", explanation, temporary=True)
            await client.session.sleep(PAUSE_SECONDS)

    async def _read(self, partition: int, id: str) -> Pending:
        keys = self.keys(partition, "buffer", "batch", "meta")
        _, incarnation, seq, nonce, *rest = await self.channel.read("buffered_read", keys, [id])
        return Pending(int(incarnation or "0", 16), int(seq), int(nonce or "0", 16), *map(int, rest))

    def _statement(self, id: str, reads: dict[int, Pending]) -> tuple[str, list[Any]]:
        names = self.table or ("counterfoil_values", "id", "value")
        table, key, value = (".".join(f"`{part}`" for part in name.split(".")) for name in names)
        statement = (
            f"SELECT COALESCE(v.{value}, 0), l.partition_no, l.seq, l.nonce, l.position, f.database_id"
            f" FROM counterfoil_families f LEFT JOIN {table} v"
            f" ON v.{key} = %s{'' if self.table else ' AND v.family = f.number'}"
            " LEFT JOIN counterfoil_ledger l ON l.family = f.number"
            f" AND (l.partition_no, l.incarnation) IN ({', '.join(['(%s, %s)'] * len(reads))})"
            " WHERE f.namespace = %s AND f.name = %s"
        )
        ledgers = [number for at, one in reads.items() for number in (at, one.incarnation)]
        return statement, [id if self.table else id.encode(), *ledgers, *self.name.split("/")]


class _NoRedirects(HTTPRedirectHandler):
    """Another server would receive the token."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def _get(url: str, token: str | None) -> tuple[int, str]:
    """Returns the code and the body of a reply, and 503 if there is no whole one."""
    request = Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        try:
            reply: Any = build_opener(ProxyHandler({}), _NoRedirects).open(request, timeout=HTTP_SECONDS)
        except HTTPError as error:
            reply = error
        with reply:
            return reply.code, reply.read().decode(errors="replace")
    except Exception as error:
        return 503, str(error)


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
        raise Misconfigured("DATABASE", "the connection is in a transaction, or not in autocommit mode")


def _fetch(connection: Any, statement: str, parameters: list[Any]) -> list[list[Any]]:
    with closing(connection.cursor()) as cursor:
        cursor.execute(statement, parameters)
        return [list(row.values() if isinstance(row, dict) else row) for row in cursor.fetchall()]
