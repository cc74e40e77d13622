"""Exact values: by the daemon's HTTP API, or from Redis and the application's database."""

import json
import threading
import time
from typing import Any, Dict, List, Optional, Tuple
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import ProxyHandler, Request, build_opener

from ._errors import CounterfoilError, Misconfigured, NotCounted
from ._family import EXPLANATIONS, PAUSE_SECONDS, Family, Session, id_bytes
from ._steps import Run, Sleep, Steps

ATTEMPTS = 20
HTTP_SECONDS = 12  # the daemon replies within 10

Table = Tuple[str, str, str]
Read = Tuple[str, int, int, bool, int, int]  # incarnation, seq, nonce, in flight, batch and buffer delta
Ledger = Tuple[int, Optional[int], Optional[bytes]]  # seq, nonce, position


class Sources:
    """Where values come from: the daemon, or a database."""

    def __init__(self, daemon: Optional[str], token: Optional[str], database: Any) -> None:
        self.daemon = daemon.rstrip("/") if daemon else None
        self.database = database
        self._token = token
        self._lock = threading.Lock()

    def get(self, path: str, family: str, id: str) -> int:
        """Gets the value of one id from the daemon. Blocks."""
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        request = Request(f"{self.daemon}/api/v1/{path}?{urlencode({'family': family, 'id': id})}", headers=headers)
        try:
            with build_opener(ProxyHandler({})).open(request, timeout=HTTP_SECONDS) as response:
                return int(json.load(response)[path][0]["value"])
        except HTTPError as error:
            with error:
                explanation = f"the daemon replied {error.code}: {error.read(2000).decode(errors='replace')}"
            if error.code in (429, 500, 502, 503, 504):
                raise NotCounted("DAEMON", explanation, temporary=True) from error
            reason = {404: "UNCONFIGURED", 409: "MISMATCH"}.get(error.code, "DAEMON")
            raise Misconfigured(reason, explanation) from error
        except Exception as error:
            raise NotCounted("DAEMON", f"no reply from {self.daemon}: {error}", temporary=True) from error

    def rows(self, statement: str, parameters: List[Any]) -> List[List[Any]]:
        """Executes one statement outside of any transaction. Blocks."""
        try:
            if not callable(self.database):
                with self._lock:  # a connection is for one thread at a time
                    if _fetch(self.database, "SELECT @@autocommit", [])[0][0] != 1 or _in_transaction(self.database):
                        raise Misconfigured("DATABASE", "the connection is in a transaction: pass a function that returns another")
                    return _fetch(self.database, statement, parameters)
            connection = self.database()
            try:
                connection.rollback()  # a pooled connection may have a snapshot
                return _fetch(connection, statement, parameters)
            finally:
                connection.close()
        except CounterfoilError:
            raise
        except Exception as error:
            raise NotCounted("DATABASE", str(error), temporary=True) from error


class ExactValues(Family):
    """Families whose values can be read exactly while hits are on their way to the database."""

    def __init__(self, session: Session, name: str, table: Optional[Table] = None) -> None:
        super().__init__(session, name)
        self._table = table

    def value(self, id: str) -> Steps[int]:
        word = id_bytes(id)
        if self.session.sources.database is not None:
            return (yield from self._from_database(id, word))
        return (yield from self.from_daemon("values", id))

    def from_daemon(self, path: str, id: str) -> Steps[int]:
        if not self.session.sources.daemon:
            raise Misconfigured("NO SOURCE", "pass daemon=URL or database=, which values are read from")
        deadline = time.monotonic() + self.session.retry_for
        while True:
            try:
                return int((yield Run(self.session.sources.get, (path, self.full_name, id))))
            except NotCounted:
                if time.monotonic() + PAUSE_SECONDS >= deadline:
                    raise
            yield Sleep(PAUSE_SECONDS)

    def _from_database(self, id: str, word: bytes) -> Steps[int]:
        partition, description = yield from self.located(word)
        partitions = range(description.partitions) if description.settings.get("wide") else [partition]
        for _ in range(ATTEMPTS):
            reads = yield from self._reads(partitions, word)
            value, ledgers = _parse((yield Run(self.session.sources.rows, self._statement(id, word, reads))), self.full_name)
            pending = [_pending(read, ledgers.get(number, (0, None, None)), word) for number, read in reads.items()]
            # a crash of Redis may revert an incarnation as long as no batch of it is in the ledger
            unsure = [number for number, read in reads.items() if number not in ledgers and (read[4] or read[5])]
            again = yield from self._reads(unsure, word)
            if None not in pending and all(again[number][0] == reads[number][0] for number in unsure):
                return value + sum(delta or 0 for delta in pending)
            yield Sleep(PAUSE_SECONDS)
        raise NotCounted("SET BACK", "the database is ahead of Redis, which was set back", temporary=True)

    def _reads(self, partitions: Any, word: bytes) -> Steps[Dict[int, Read]]:
        reads: Dict[int, Read] = {}
        for number in partitions:
            keys = self.keys(number, "buffer", "batch", "meta")
            _, incarnation, seq, nonce, in_flight, *deltas = yield from self.read("buffered_read", keys, [word])
            reads[number] = (incarnation.decode(), int(seq), int(nonce or b"0", 16), bool(int(in_flight)), *map(int, deltas))
        return reads

    def _statement(self, id: str, word: bytes, reads: Dict[int, Read]) -> Tuple[str, List[Any]]:
        values, key, value = self._table or ("counterfoil_values", "id", "value")
        own = "" if self._table else " AND v.family = f.number"
        ledgers = [number for partition, read in reads.items() for number in (partition, int(read[0] or "0", 16))]
        statement = (
            f"SELECT COALESCE(v.{_quoted(value)}, 0), l.partition_no, l.seq, l.nonce, l.position FROM counterfoil_families f"
            f" LEFT JOIN {_quoted(values)} v ON v.{_quoted(key)} = %s{own}"
            " LEFT JOIN counterfoil_ledger l ON l.family = f.number"
            f" AND (l.partition_no, l.incarnation) IN ({', '.join(['(%s, %s)'] * len(reads))})"
            " WHERE f.namespace = %s AND f.name = %s"
        )
        return statement, [id if self._table else word, *ledgers, self.session.namespace, self.name]


def _parse(rows: List[List[Any]], family: str) -> Tuple[int, Dict[int, Ledger]]:
    """The value, and the ledger of each partition that has one."""
    if not rows:
        raise Misconfigured("UNCONFIGURED", f"the database has no family {family}: " + EXPLANATIONS["UNCONFIGURED"])
    ledgers: Dict[int, Ledger] = {}
    for _, partition, seq, nonce, position in rows:
        if partition is not None:
            ledgers[int(partition)] = (int(seq), int(nonce), position.encode() if isinstance(position, str) else position)
    return int(rows[0][0]), ledgers


def _pending(read: Read, ledger: Ledger, word: bytes) -> Optional[int]:
    """What the value in the database lacks; None if a newer batch landed in between."""
    _, seq, nonce, in_flight, batch, buffer = read
    applied, ledger_nonce, position = ledger
    if applied > seq:
        return None
    if applied == seq and seq and ledger_nonce != nonce:
        raise NotCounted("SET BACK", "Redis was set back to an older state; the daemon resets the partition within 30 s", temporary=True)
    if applied == seq and position is None:
        return buffer
    if applied == seq and in_flight:
        return buffer if position is not None and word <= position else batch + buffer
    if applied == seq - 1 and position is None and in_flight:
        return batch + buffer
    raise NotCounted("BEHIND", "this copy of the database is behind: read from the primary", temporary=True)


def _fetch(connection: Any, statement: str, parameters: List[Any]) -> List[List[Any]]:
    cursor = connection.cursor()
    try:
        cursor.execute(statement, parameters)
        return [list(row.values() if isinstance(row, dict) else row) for row in cursor.fetchall()]
    finally:
        cursor.close()


def _in_transaction(connection: Any) -> bool:
    """As far as the library knows: mysql-connector has the one, PyMySQL the other."""
    in_transaction = getattr(connection, "in_transaction", None)
    return in_transaction is True or bool(getattr(connection, "server_status", 0) & 1)


def _quoted(name: str) -> str:
    return ".".join("`" + part.replace("`", "``") + "`" for part in name.split("."))
