"""Exact values, while hits are on their way to the database: the daemon reads them."""

from __future__ import annotations

import json
import os
import random
import time
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, Iterable
from urllib.parse import urlsplit

from ._errors import Misconfigured, NotCounted
from ._family import PAUSE_SECONDS, D, Family, call, valid

IDS = 1000  # of a request
CONNECT_SECONDS = 1
REPLY_SECONDS = 12  # the daemon replies within 10
IDLE_SECONDS = 8  # it closes connections that are idle for 10


class ExactValues(Family[D]):
    @call
    async def value(self, id: str) -> int:
        """Returns the exact value, with what is not in MySQL yet."""
        return (await self.exact([valid(id)]))[0]

    @call
    async def values(self, ids: Iterable[str]) -> list[int]:
        """Returns the exact values of many counters, in the order of their ids: a request for 1,000 of them."""
        return await self.exact([valid(id) for id in ids])

    async def exact(self, ids: list[str]) -> list[int]:
        return [value or 0 for value in await self.find(ids)]

    async def find(self, ids: list[str]) -> list[int | None]:
        """Returns None where only the application makes the row of a cached counter, and has not."""
        deadline, values = self.client.deadline(), []
        for start in range(0, len(ids), IDS):
            values += await self._ask(ids[start : start + IDS], deadline)
        return values

    async def _ask(self, ids: list[str], deadline: float) -> list[int | None]:
        """Asks one daemon after the other, and begins again while none of them is available."""
        client, daemons = self.client, self.client.daemons
        if not daemons.urls:
            raise Misconfigured("NO DAEMON", "pass daemon=URL")
        body = json.dumps({"family": self.name, "ids": ids}).encode()
        while True:
            pause, explanation = PAUSE_SECONDS, ""
            for url in daemons.in_order():
                code, text, retry_after = await client.session.run(daemons.post, url, body, deadline)
                values = _values(text) if code == 200 else []
                if len(values) == len(ids):
                    daemons.first = daemons.urls.index(url)
                    return values
                explanation = f"{url}: {code} {text[:2000]}"
                if 300 <= code < 500 and code != 429:
                    raise Misconfigured({404: "UNCONFIGURED", 409: "MISMATCH"}.get(code, "DAEMON"), explanation)
                if retry_after:  # with others it would be refused again
                    pause = max(pause, retry_after * random.uniform(0.5, 1))
            if time.monotonic() + pause >= deadline:
                raise NotCounted("DAEMON", explanation, temporary=True)
            await client.session.sleep(pause)


class Daemons:
    """The daemons of a client, and the connections to them that no thread is using."""

    def __init__(self, urls: str | list[str], token: str | None, retry_for: float) -> None:
        self.urls = [url.rstrip("/") for url in ([urls] if isinstance(urls, str) else urls)]
        self.first = 0  # the one that replied last
        self._headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
        # a silent one leaves time for the others
        self._timeout = min(REPLY_SECONDS, max(retry_for / max(len(self.urls), 1), CONNECT_SECONDS))
        self._idle: list[tuple[str, float, HTTPConnection]] = []
        self._pid = os.getpid()
        for url in self.urls:
            if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
                raise Misconfigured("OPTION", f"daemon: expected http://HOST:PORT, not {url}")

    def in_order(self) -> list[str]:
        return self.urls[self.first :] + self.urls[: self.first]

    def post(self, url: str, body: bytes, deadline: float) -> tuple[int, str, float]:
        """Returns the code and the body of a reply, and Retry-After; 503 if there is no whole reply."""
        while True:
            connection = self._taken(url)
            is_new = connection is None
            try:
                connection = connection or self._connected(url)
                connection.request("POST", f"{urlsplit(url).path}/api/v1/values", body, self._headers)
                reply = connection.getresponse()
                text, retry_after = reply.read().decode(errors="replace"), reply.headers.get("Retry-After", "")
                if not reply.will_close:
                    self._idle.append((url, time.monotonic() + IDLE_SECONDS, connection))
                return reply.status, text, float(retry_after) if retry_after.isdigit() else 0
            except (OSError, HTTPException) as error:
                # the daemon may have closed an idle connection
                if is_new or isinstance(error, TimeoutError) or time.monotonic() >= deadline:
                    return 503, repr(error), 0

    def _taken(self, url: str) -> HTTPConnection | None:
        """Takes the connection that was used last, unless it belongs to the parent process."""
        if self._pid != os.getpid():
            self._idle, self._pid = [], os.getpid()
        idle = self._idle
        for _ in range(len(idle)):
            try:
                found = idle.pop()
            except IndexError:  # other threads take some
                return None
            if found[1] < time.monotonic():
                found[2].close()
            elif found[0] == url:
                return found[2]
            else:
                idle.insert(0, found)
        return None

    def _connected(self, url: str) -> HTTPConnection:
        kind = HTTPSConnection if urlsplit(url).scheme == "https" else HTTPConnection
        connection = kind(urlsplit(url).netloc.rpartition("@")[2], timeout=min(CONNECT_SECONDS, self._timeout))
        connection.connect()
        connection.sock.settimeout(self._timeout)
        return connection


def _values(text: str) -> list[Any]:
    try:
        return list(json.loads(text)["values"])
    except (ValueError, LookupError, TypeError):
        return []
