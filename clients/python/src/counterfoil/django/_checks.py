"""Checks of `manage.py check`: of `counterfoil.toml`, and with `--database default` of the tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.checks import Error, Warning
from django.db import connections, router

from ._toml import declared, families

EXACT = "utf8mb4_0900_bin", "utf8mb4_nopad_bin"  # collations under which different texts are never equal
COLUMNS = """SELECT column_name, data_type, collation_name,
        is_nullable = 'YES' OR column_default IS NOT NULL OR extra <> ''
    FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = %s"""


def check_toml(app_configs: Any = None, **_: Any) -> list[Any]:
    """Compares the file with the families that the models declare."""
    path, found = settings.COUNTERFOIL.get("TOML"), []
    written = Path(path).read_text().split("[[family]]") if path and Path(path).exists() else []
    for name, block in families().items() if path else ():
        parts = [part for part in (f'"{name}"', "table", "recount") if part in block]
        if not any(all(part in family for part in parts) for family in written):
            hint = f"`manage.py counterfoil_toml {name}` writes:\n{block}"
            found.append(Warning(f"{path} has no family {' with '.join(parts)}", hint, id="counterfoil.W001"))
    return found


def check_tables(databases: Any = None, **_: Any) -> list[Any]:
    """Checks what the daemon requires of tables. A table that is not migrated yet passes."""
    found = []
    for alias in databases or ():
        connection = connections[alias]
        for field in declared() if connection.vendor == "mysql" else ():
            keys, table = [key.column for key in field.key_fields], field.model._meta.db_table
            with connection.cursor() as cursor:
                cursor.execute(COLUMNS, [table])
                columns = cursor.fetchall() if router.allow_migrate_model(alias, field.model) else ()
            for name, type, collation, is_filled in columns:
                if name in keys and collation and collation not in (*EXACT, "utf8mb4_bin" if type == "char" else ""):
                    what = f"{table}.{name} has collation {collation}, under which different ids can be one row"
                    hint = f'needed is CharField(..., db_collation="{EXACT[connection.mysql_is_mariadb]}")'
                    found.append(Error(what, hint, obj=field, id="counterfoil.E001"))
                if field.keys and not is_filled and name not in (*keys, field.column):
                    what = f"{table}.{name} is NOT NULL without a default in the database: no row could be inserted"
                    found.append(Error(what, "needed is db_default or null=True", obj=field, id="counterfoil.E002"))
    return found
