"""The application."""

from django.apps import AppConfig
from django.core import checks

from ._client import client


class CounterfoilConfig(AppConfig):
    name = "counterfoil.django"
    label = "counterfoil"

    def ready(self) -> None:
        from . import _checks

        client()  # is made before threads begin
        checks.register(_checks.check_toml)
        checks.register(_checks.check_tables, checks.Tags.database)
