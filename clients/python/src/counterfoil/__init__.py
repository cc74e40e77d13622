"""Counters that are exact across Redis and MySQL. See `Counterfoil`; `counterfoil.asyncio` has the same for asyncio."""

from ._activity import Activity
from ._errors import CounterfoilError, Misconfigured, NotCounted, OutcomeUnknown
from ._sync import ActivityCounters, Buffered, Cached, Counterfoil, Series, Visitors

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
