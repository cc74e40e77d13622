"""Celery tasks that count once, however often they run."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from celery import shared_task

from .. import CounterfoilError, OutcomeUnknown
from ._client import client, log


def delay_count(family: str, id: str | int, delta: int = 1) -> Any:
    """Enqueues a task that counts. Its id names the request, whose epoch goes with it, so retries and redeliveries count
    once. They must end within the family's `remember_requests`. Raises `NotCounted` while Redis is unavailable."""
    task = str(uuid4())
    epoch = client().buffered(family).request_epoch(task, id)
    return count.apply_async(args=(family, id, delta, epoch), task_id=task)


@shared_task(
    bind=True,
    name="counterfoil.count",
    acks_late=True,
    autoretry_for=(CounterfoilError,),
    retry_backoff=True,
    retry_backoff_max=60,
    max_retries=30,
)
def count(task: Any, family: str, id: str | int, delta: int, epoch: str) -> None:
    try:
        client().buffered(family).add_once(task.request.id, id, delta, epoch=epoch)
    except OutcomeUnknown as error:
        if error.reason != "EXPIRED":
            raise
        log.error("%s: %+d for %r is dropped, task %s is too late: %s", family, delta, id, task.request.id, error)
