"""The client of the settings."""

from __future__ import annotations

import functools
import logging
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed

from .. import Counterfoil, NotCounted, testing

log = logging.getLogger("counterfoil")


@functools.lru_cache(maxsize=None)
def client() -> Counterfoil:
    """Returns the client of this process. It connects with its first call, and again in a process that was
    forked."""
    options = {name.lower(): value for name, value in getattr(settings, "COUNTERFOIL", {}).items()}
    address, namespace, _ = (options.pop(name, None) for name in ("redis", "namespace", "toml"))
    if not address or not namespace:
        raise ImproperlyConfigured('COUNTERFOIL = {"REDIS": "redis://localhost", "NAMESPACE": "shop"} is needed')
    if address == "memory":
        return testing.Counterfoil(namespace, **options)
    return Counterfoil.connect(address, namespace, **options)


@setting_changed.connect
def _forget(setting: str, **_: Any) -> None:
    if setting == "COUNTERFOIL":
        client.cache_clear()


def count(counters: Any, *hit: Any) -> bool:
    """Counts a hit by `add` or `first_visit`. Returns whether it was counted."""
    call = counters.first_visit if counters.kind == "visitors" else counters.add
    return call(*hit) is not False


def count_or_log(counters: Any, *hit: Any) -> None:
    """Counts a hit, or lets it wait in the process until Redis is available again. Logs a hit that is not counted or
    has an unknown outcome, and never raises."""
    try:
        try:
            count(counters, *hit)
        except NotCounted as error:
            if not error.temporary:
                raise
            counters.later(*hit)
    except Exception as error:
        log.error("%s: %r may not be counted: %s: %s", counters.name, hit, type(error).__name__, error)
