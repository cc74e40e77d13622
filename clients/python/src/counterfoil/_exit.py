"""The end of a process: what `later` took is sent, also where Python's own exit hooks do not run."""

from __future__ import annotations

import atexit
import os
import sys
import time
from contextlib import suppress
from typing import Any

from ._client import END_SECONDS
from ._errors import CounterfoilError

_sessions: set[Any] = set()  # the sessions that may have sums
_hooked_pid = 0


@atexit.register  # at the import, so that it runs after what applications register later
def close_all(**_: object) -> None:
    deadline = time.monotonic() + END_SECONDS
    for session in list(_sessions):
        if session.pid == os.getpid():
            with suppress(CounterfoilError):  # dropped sums were logged
                session.close(deadline)


def register(session: Any) -> None:
    """Adds a session whose sums are sent at the end of its process."""
    global _hooked_pid
    _sessions.add(session)
    if _hooked_pid == os.getpid():
        return
    _hooked_pid = os.getpid()
    util = sys.modules.get("multiprocessing.util")
    if util and sys.modules["multiprocessing.process"].parent_process():
        util.Finalize(None, close_all, exitpriority=-100)  # runs after the finalizers of queues
    if signals := sys.modules.get("celery.signals"):  # its children end by `os._exit`, after this signal
        signals.worker_process_shutdown.connect(close_all, weak=False, dispatch_uid="counterfoil")


def unregister(session: Any) -> None:
    _sessions.discard(session)


def is_sudden() -> bool:
    """Returns whether this process ends without any hook. RQ runs a job in a child, which ends by `os._exit`."""
    current_job = getattr(sys.modules.get("rq"), "get_current_job", None)
    return current_job is not None and current_job() is not None
