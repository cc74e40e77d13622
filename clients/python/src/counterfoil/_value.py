"""Exact values, which include the hits that are not in MySQL yet. The daemon reads them."""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, Callable, Iterable, Sequence, Union
from urllib.parse import urlsplit

from ._channel import PAUSE_SECONDS
from ._errors import CounterfoilError, Misconfigured, NotCounted, unconfigured
from ._family import D, Family, Id, call, valid
from ._outage import Outage

IDS = 1000  # the most in a request
IDLE_SECONDS = 8  # the daemon closes connections that are idle for 10
PROBE_REPLY_SECONDS = 0.5
NO_REPLY = 0  # in place of a status
Default = Union[int, Sequence[int], Callable[[CounterfoilError], Any]]


class ExactValues(Family[D]):
    @call
    async def value(self, id: Id, default: Default | None = None) -> int:
        """Returns the exact value, with what is not in MySQL yet.

        `default` is what it returns if no exact value arrives in time: a number, or a function that gets the
        error and returns the number, with asyncio also a coroutine function. Without one it raises
        `NotCounted`."""
        return (await self.exact([valid(id)], default))[0]

    @call
    async def values(self, ids: Iterable[Id], default: Default | None = None) -> list[int]:
        """Returns the exact values of many counters, in the order of their ids: a request for 1,000 of them.

        `default` is one number for all, a list in the order of the ids, or a function that returns either."""
        return await self.exact([valid(id) for id in ids], default)

    async def exact(self, keys: list[Any], default: Default | None) -> list[int]:
        session, deadline = self.session, self.client.read_deadline()
        try:
            return [value or 0 for value in await self.find(await self.ids(keys, deadline), deadline)]
        except NotCounted as error:
            if default is None or not error.temporary:
                raise
            shown = await session.run(default, error) if callable(default) else default
            return list(shown) if isinstance(shown, Sequence) else [shown] * len(keys)

    async def ids(self, keys: list[Any], deadline: float) -> list[str]:
        return keys

    async def find(self, ids: list[str], deadline: float) -> list[int | None]:
        """Returns None where only the application makes the row of a cached counter, and has not."""
        values: list[int | None] = []
        for start in range(0, len(ids), IDS):
            some = ids[start : start + IDS]
            values += await self.client.daemons.values(self.session, self.name, some, deadline)
        return values


class Daemons:
    """The daemons of a client, and the connections to them that no thread is using."""

    def __init__(self, urls: str | list[str], token: str | None) -> None:
        self.urls = [url.rstrip("/") for url in ([urls] if isinstance(urls, str) else urls)]
        self._first = 0  # the number of the one that replied last
        self._headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
        self._idle: list[tuple[str, float, HTTPConnection]] = []
        self._pid = os.getpid()
        for url in self.urls:
            if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
                raise Misconfigured("OPTION", f"daemon: expected http://HOST:PORT, not {url}")

    async def values(self, session: Any, family: str, ids: list[str], deadline: float) -> list[int | None]:
        """Asks one daemon after the other, and begins again while none of them is available."""
        if not self.urls:
            raise Misconfigured("NO DAEMON", "pass daemon=URL")
        body = json.dumps({"family": family, "ids": ids}).encode()
        while True:
            if outage := session.outage("the daemon"):
                raise outage.error()
            pause, replied = PAUSE_SECONDS, False
            urls = self.urls[self._first :] + self.urls[: self._first]
            for number, url in enumerate(urls):
                seconds = (deadline - time.monotonic()) / (len(urls) - number)  # a silent one leaves time for the others
                request = self._request, url, "POST", "/api/v1/values", body, seconds
                try:
                    status, text, retry_after = await session.run(*request, seconds=seconds)
                except asyncio.TimeoutError:  # asyncio sends the request in a thread, and none was free
                    status, text, retry_after = NO_REPLY, "no thread was free", 0
                values = _values(text) if status == 200 else []
                if len(values) == len(ids):
                    self._first = self.urls.index(url)
                    return values
                replied = replied or status != NO_REPLY
                explanation = f"{url}: {status or 'no reply'}: {text[:2000]}"
                if status == 404 and family in _error(text):
                    raise unconfigured(family, explanation)
                if 300 <= status < 500 and status != 429:
                    raise Misconfigured("MISMATCH" if status == 409 else "DAEMON", explanation)
                if retry_after:  # a random pause: clients that were refused together would be refused together again
                    pause = max(pause, retry_after * random.uniform(0.5, 1))
            if time.monotonic() + pause >= deadline:
                error = NotCounted("DAEMON", explanation, temporary=True)
                if not replied:
                    probe = partial(session.run, self._has_reply)
                    session.begin_outage("the daemon", Outage(error, probe, "the daemon"))
                raise error
            await session.sleep(pause)

    def _has_reply(self) -> bool:
        """Asks each daemon once, and returns whether an outage is over."""
        requests = (self._request(url, "GET", "/healthz", b"", PROBE_REPLY_SECONDS) for url in self.urls)
        return any(status != NO_REPLY for status, *_ in requests)

    def _request(self, url: str, method: str, path: str, body: bytes, seconds: float) -> tuple[int, str, float]:
        """Returns status and body of a reply, and Retry-After; `NO_REPLY` if there is no whole one in time."""
        end = time.monotonic() + seconds
        while True:
            connection = self._taken(url)
            is_new = connection is None
            try:
                connection = connection or self._connected(url, seconds)
                connection.sock.settimeout(max(end - time.monotonic(), 0.001))
                connection.request(method, f"{urlsplit(url).path}{path}", body, self._headers)
                reply = connection.getresponse()
                text, retry_after = reply.read().decode(errors="replace"), reply.headers.get("Retry-After", "")
                if not reply.will_close:
                    self._idle.append((url, time.monotonic() + IDLE_SECONDS, connection))
                return reply.status, text, float(retry_after) if retry_after.isdigit() else 0
            except (OSError, HTTPException) as error:
                # the daemon may have closed an idle connection
                if is_new or isinstance(error, TimeoutError) or time.monotonic() >= end:
                    return NO_REPLY, str(error) or repr(error), 0

    def _taken(self, url: str) -> HTTPConnection | None:
        """Takes the connection that was used last, unless it belongs to the parent process."""
        if self._pid != os.getpid():
            self._idle, self._pid = [], os.getpid()
        idle = self._idle
        for _ in range(len(idle)):
            try:
                found = idle.pop()
            except IndexError:  # other threads have taken the rest
                return None
            if found[1] < time.monotonic():
                found[2].close()
            elif found[0] == url:
                return found[2]
            else:
                idle.insert(0, found)
        return None

    def _connected(self, url: str, seconds: float) -> HTTPConnection:
        kind = HTTPSConnection if urlsplit(url).scheme == "https" else HTTPConnection
        connection = kind(urlsplit(url).netloc.rpartition("@")[2], timeout=max(seconds, 0.001))
        connection.connect()
        return connection


def _error(text: str) -> str:
    """Returns the error in a reply of the daemon, or an empty text for the reply of another server, such as a proxy."""
    try:
        return str(json.loads(text)["error"])
    except (ValueError, LookupError, TypeError):
        return ""


def _values(text: str) -> list[Any]:
    try:
        return list(json.loads(text)["values"])
    except (ValueError, LookupError, TypeError):
        return []
