"""The errors of all calls."""

from __future__ import annotations

import copy
from typing import Any

HINTS = {  # explanations of errors that are only a word
    "EXPIRED": "Redis no longer knows the call or its request: it lost its memory, or they are too old",
    "BADTIME": "the time is ahead, or neither a window nor what is kept takes it any more",
    "NOCALENDAR": "Redis does not know the current day or month, because no daemon serves the family",
    "MISMATCH": "the family has changed in Redis",
    "RANGE": "the sum would be beyond 64 bits",
    "CLOSED": "the client is closed, and takes no further calls",
    "PASSED": "two processes use one caller name",
}


class CounterfoilError(Exception):
    """The base class of the three errors.

    - `reason`: a word such as `FULL` or `UNCONFIGURED`, and `explanation` for people
    - `value`: the counter's value, where `reason` is `RANGE` in a cached family
    - `temporary`: whether the same call may succeed later, since Redis or another server is unavailable
    """

    def __init__(
        self, reason: str, explanation: str = "", value: int | None = None, temporary: bool = False
    ) -> None:
        super().__init__(reason, explanation, value, temporary)
        self.reason, self.value, self.temporary = reason, value, temporary
        self.explanation = explanation or HINTS.get(reason, "")
        if reason == "RANGE" and value is not None and not explanation:
            self.explanation = f"the change would leave the bounds, the value is {value}"

    def __str__(self) -> str:
        return f"{self.reason}: {self.explanation}" if self.explanation else self.reason


class NotCounted(CounterfoilError):
    """Nothing was counted, or nothing could be read."""


class OutcomeUnknown(CounterfoilError):
    """The call was counted once or not at all. Do not repeat it: that could count it twice."""


class Misconfigured(CounterfoilError):
    """Nothing was counted: the family, the connection or an option needs an operator or a programmer."""


def unconfigured(family: str, why: str) -> NotCounted:
    advice = "declare it in counterfoil.toml, and run the daemon"
    explanation = f"no daemon has configured {family}: {advice}{why and f'; {why}'}"
    return NotCounted("UNCONFIGURED", explanation, temporary=True)


def value_of(result: Any) -> Any:
    """Returns a result, or raises a copy of an error, since several callers may share it."""
    if isinstance(result, BaseException):
        raise copy.copy(result) from result.__cause__
    return result
