"""Outages: after the first call that waited in vain for a server, no other one does."""

from __future__ import annotations

import time
from typing import Any, Callable, Coroutine

from ._errors import CounterfoilError, NotCounted, OutcomeUnknown
from ._redis import LOST, NOT_SENT

PROBE_SECONDS = 1


class Outage:
    """A server that does not reply. Calls fail at once until a probe, once a second, gets a reply."""

    def __init__(self, server: str, error: CounterfoilError, probe: Callable[[], Coroutine[Any, Any, bool]]) -> None:
        self.probe = probe
        self.is_probed: Callable[[], bool]  # whether the background still probes
        self._server, self._error, self._since = server, error, time.monotonic()

    @property
    def lasts(self) -> bool:
        # at the exit of Python no thread can start
        return self.is_probed() or time.monotonic() < self._since + PROBE_SECONDS

    def error(self, was_sent: bool = False) -> CounterfoilError:
        """Returns what a call gets, which may have been sent before the outage was known."""
        reason, seconds = self._error.reason, time.monotonic() - self._since
        state = "unreachable" if reason in (LOST, NOT_SENT, "DAEMON") else reason
        explanation = f"{self._server} has been {state} for {seconds:.0f} s: {self._error.explanation}"
        reason = NOT_SENT if reason == LOST else reason
        if was_sent:
            error: CounterfoilError = OutcomeUnknown(reason, explanation)
        else:
            error = NotCounted(reason, explanation, temporary=True)
        error.__cause__ = self._error.__cause__
        return error
