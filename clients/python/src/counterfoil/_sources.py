"""Where exact values come from besides Redis: the daemon's HTTP API, or the application's database."""

import json
import threading
from typing import Any, List, Optional, Tuple
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import ProxyHandler, Request, build_opener

from ._errors import CounterfoilError, Misconfigured, NotCounted

HTTP_SECONDS = 12  # the daemon replies within 10
Table = Tuple[str, str, str]


class Sources:
    def __init__(self, daemon: Optional[str], token: Optional[str], database: Any) -> None:
        self.database = database
        self._daemon = daemon
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._lock = threading.Lock()

    def get(self, path: str, family: str, id: str) -> int:
        """Gets the value of an id from the daemon. Blocks."""
        if not self._daemon:
            raise Misconfigured("NO SOURCE", "values are read from the daemon or the database: pass daemon=URL or database=")
        url = f"{self._daemon.rstrip('/')}/api/v1/{path}?{urlencode({'family': family, 'id': id})}"
        try:
            with build_opener(ProxyHandler({})).open(Request(url, headers=self._headers), timeout=HTTP_SECONDS) as response:
                return int(json.load(response)[path][0]["value"])
        except HTTPError as error:
            with error:
                explanation = f"the daemon replied {error.code}: {error.read(2000).decode(errors='replace')}"
            if error.code == 429 or error.code >= 500:
                raise NotCounted("DAEMON", explanation, temporary=True) from error
            raise Misconfigured({404: "UNCONFIGURED", 409: "MISMATCH"}.get(error.code, "DAEMON"), explanation) from error
        except Exception as error:
            raise NotCounted("DAEMON", f"{url}: {error}", temporary=True) from error

    def rows(self, statement: str, parameters: List[Any]) -> List[List[Any]]:
        """Executes one statement outside of any transaction. Blocks."""
        try:
            if callable(self.database):
                connection = self.database()
                try:
                    connection.rollback()  # one from a pool may have an old snapshot
                    return _fetch(connection, statement, parameters)
                finally:
                    connection.close()
            with self._lock:  # a connection is for one thread at a time
                # PyMySQL has the status of the server, mysql-connector in_transaction
                is_open = getattr(self.database, "server_status", 0) & 1 or getattr(self.database, "in_transaction", False)
                if is_open or _fetch(self.database, "SELECT @@autocommit", [])[0][0] != 1:
                    raise Misconfigured("DATABASE", "the connection has a transaction: pass a function that returns one without")
                return _fetch(self.database, statement, parameters)
        except CounterfoilError:
            raise
        except Exception as error:
            raise NotCounted("DATABASE", str(error), temporary=True) from error


def _fetch(connection: Any, statement: str, parameters: List[Any]) -> List[List[Any]]:
    cursor = connection.cursor()
    try:
        cursor.execute(statement, parameters)
        return [list(row.values() if isinstance(row, dict) else row) for row in cursor.fetchall()]
    finally:
        cursor.close()
