"""Counters that are exact across Redis and MySQL. See `Counterfoil`; `counterfoil.asyncio` has the same for
asyncio."""

from ._activity import Activity as Activity
from ._activity import ActivityCounters as ActivityCounters
from ._blocking import Counterfoil as Counterfoil
from ._buffered import Buffered as Buffered
from ._buffered import Visitors as Visitors
from ._cached import Cached as Cached
from ._errors import CounterfoilError as CounterfoilError
from ._errors import Misconfigured as Misconfigured
from ._errors import NotCounted as NotCounted
from ._errors import OutcomeUnknown as OutcomeUnknown
from ._series import Series as Series
