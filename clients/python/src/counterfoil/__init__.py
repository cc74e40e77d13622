"""Counters that are exact across Redis and MySQL. See `Counterfoil`; `counterfoil.asyncio` has the same for asyncio."""

from ._activity import Activity, ActivityCounters
from ._blocking import Counterfoil
from ._buffered import Buffered
from ._cached import Cached
from ._errors import CounterfoilError, Misconfigured, NotCounted, OutcomeUnknown
from ._series import Series
from ._visitors import Visitors

__all__ = [
    "Activity",
    "ActivityCounters",
    "Buffered",
    "Cached",
    "Counterfoil",
    "CounterfoilError",
    "Misconfigured",
    "NotCounted",
    "OutcomeUnknown",
    "Series",
    "Visitors",
]
