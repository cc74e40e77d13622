"""Outages: after the first call that waited in vain for a server or a family, no other one does."""

from __future__ import annotations

import time
from typing import Any, Callable, Coroutine

from ._errors import CounterfoilError, NotCounted, OutcomeUnknown
from ._redis import LOST, NOT_SENT

PROBE_SECONDS = 1


class Outage:
    """A server that does not reply, or a family that no daemon has configured. Calls fail at once until a probe,
    once a second, finds that this is over."""

    def __init__(
        self, error: CounterfoilError, probe: Callable[[], Coroutine[Any, Any, bool]], server: str = ""
    ) -> None:
        self.probe = probe
        self.is_probed: Callable[[], bool]  # whether the background still probes
        self._server, self._error, self._since = server, error, time.monotonic()

    @property
    def lasts(self) -> bool:
        # while Python exits no thread can start that probes: then the outage lasts for one interval
        return self.is_probed() or time.monotonic() < self._since + PROBE_SECONDS

    def error(self, was_sent: bool = False) -> CounterfoilError:
        """Returns the error of a call. `was_sent`: it may have been executed before the outage was known."""
        reason = NOT_SENT if self._error.reason == LOST else self._error.reason
        explanation = self._explanation()
        if was_sent:
            error: CounterfoilError = OutcomeUnknown(reason, explanation)
        else:
            error = NotCounted(reason, explanation, temporary=True)
        error.__cause__ = self._error.__cause__
        return error

    def _explanation(self) -> str:
        explanation, reason = self._error.explanation, self._error.reason
        if not self._server:  # a family
            return explanation
        state = "unreachable" if reason in (LOST, NOT_SENT, "DAEMON") else reason
        seconds = int(time.monotonic() - self._since)
        duration = f"has been {state} for {seconds} s" if seconds else f"is {state}"
        return f"{self._server} {duration}: {explanation}"
