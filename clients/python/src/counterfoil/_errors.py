"""The errors of all calls."""

from typing import Any, Optional


class CounterfoilError(Exception):
    """The base class of the three errors. `reason` is a word such as `FULL` or `UNCONFIGURED`."""

    def __init__(self, reason: str, explanation: str = "") -> None:
        super().__init__(reason, explanation)
        self.reason = reason
        self.explanation = explanation

    def __str__(self) -> str:
        return f"{self.reason}: {self.explanation}" if self.explanation else self.reason


class NotCounted(CounterfoilError):
    """Nothing was counted, or nothing could be read.

    `value` is the counter's current value where `reason` is `RANGE` in a cached family. `temporary` is true if the same
    call may succeed later: Redis was unavailable, or has no memory left.
    """

    def __init__(
        self, reason: str, explanation: str = "", value: Optional[int] = None, temporary: bool = False
    ) -> None:
        super().__init__(reason, explanation)
        self.args = (reason, explanation, value, temporary)
        self.value = value
        self.temporary = temporary


class OutcomeUnknown(CounterfoilError):
    """The call was counted once or not at all. Do not repeat it: that could count it twice."""


class Misconfigured(CounterfoilError):
    """Nothing was counted: the family, the connection or an option needs an operator or a programmer."""


def copy_of(error: CounterfoilError) -> CounterfoilError:
    """Returns a copy, since several threads may raise the error of a call that they shared."""
    copy = type(error)(*error.args)
    copy.__cause__ = error.__cause__
    return copy


def value_of(result: Any) -> Any:
    """Returns a result, or raises it."""
    if isinstance(result, CounterfoilError):
        raise copy_of(result) from result.__cause__
    return result
