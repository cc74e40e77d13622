from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError

from ..._toml import families, head


class Command(BaseCommand):
    requires_system_checks: list[str] = []  # they would warn about what this command is about to write
    help = "Writes counterfoil.toml with the families that the models declare and their recounts, or some families alone."

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("family", nargs="*", help="such as shop/product_views")

    def handle(self, *args: Any, family: Any, **options: Any) -> None:
        declared = families()
        if unknown := set(family) - set(declared):
            raise CommandError(f"no model declares {', '.join(sorted(unknown))}")
        chosen = [declared[name] for name in family or declared]
        self.stdout.write("\n".join(chosen if family else [head(), *chosen]), ending="")
