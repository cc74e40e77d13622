"""Counters that are exact across Redis and MySQL. See `Counterfoil`; `counterfoil.asyncio` has the same client
for asyncio."""

from ._blocking import Counterfoil as Counterfoil
from ._buffered import Buffered as Buffered
from ._cached import Cached as Cached
from ._errors import CounterfoilError as CounterfoilError
from ._errors import Misconfigured as Misconfigured
from ._errors import NotCounted as NotCounted
from ._errors import OutcomeUnknown as OutcomeUnknown
from ._series import Series as Series
from ._visitors import Activity as Activity
from ._visitors import ActivityCounters as ActivityCounters
from ._visitors import Visitors as Visitors
