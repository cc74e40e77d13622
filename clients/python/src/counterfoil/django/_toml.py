"""The configuration of the daemon, from settings and models."""

from __future__ import annotations

import json
from typing import Any, Iterator

from django.apps import apps
from django.conf import settings
from django.db import connections, router

from ._rows import DECLARED, CounterField

# counterfoil's names of MySQL's types; other types have the same name
TYPES = {"bigint": "signed", "integer": "signed", "smallint": "signed", "varchar": "text"}


def declared() -> Iterator[CounterField]:
    for model in apps.get_models():
        yield from (field for field in model._meta.local_fields if isinstance(field, CounterField))


def head() -> str:
    """Returns the part of the file that names the servers of the settings."""
    own, database = settings.COUNTERFOIL, settings.DATABASES["default"]
    redis, daemon = own["REDIS"], own.get("DAEMON")
    host, user = database.get("HOST") or "127.0.0.1", database.get("USER") or "root"
    place = f"localhost/{database['NAME']}?socket={host}"
    if not host.startswith("/"):
        place = f"{host}:{database.get('PORT') or 3306}/{database['NAME']}"
    servers = {"redis" if isinstance(redis, str) else "cluster": redis, "mysql": f"mysql://{user}@{place}"}
    lines = [f'listen = "{daemon.split("//")[-1]}"\n' if isinstance(daemon, str) else "", "[pair.main]"]
    lines += [f"{name} = {json.dumps(address)}" for name, address in servers.items()]
    return "\n".join([*lines, "# the password of MySQL is in the environment, COUNTERFOIL_MAIN_MYSQL_PASSWORD", ""])


def families() -> dict[str, str]:
    """Returns the part of the file about each family, by the name of the family."""
    found = {}
    for field in declared():
        name = f"{settings.COUNTERFOIL['NAMESPACE']}/{field.family}"
        keys = [[key.column, key_type(key)] for key in field.key_fields]
        # rows may be deleted while hits are on their way
        write = "upsert-or-drop" if field.keys else "update-or-drop"
        columns = f'keys = {json.dumps(keys)}, value = "{field.column}"'
        table = f'{{ name = "{field.model._meta.db_table}", write = "{write}", {columns} }}'
        found[name] = f'[[family]]\nname = "{name}"\nkind = "{field.kind}"\ntable = {table}\n'
        for model, counts in DECLARED:
            parent = model._meta.get_field(counts.parent)
            if parent.related_model._meta.get_field(counts.column) is field:
                found[name] += recount(counts, model, parent)
    return found


def recount(counts: Any, model: Any, parent: Any) -> str:
    filters = " AND ".join(equals(model._meta.get_field(name), value) for name, value in counts.where.items())
    settings = {"table": model._meta.db_table, "keys": [parent.column], "rows": "added_and_deleted", "within": "30s"}
    settings |= {"every": "6h", "filter": filters, "sum": counts.sum and model._meta.get_field(counts.sum).column}
    lines = [f"{name} = {json.dumps(value, ensure_ascii=False)}\n" for name, value in settings.items() if value]
    return "\n[family.recount]\n" + "".join(lines)


def equals(field: Any, value: Any) -> str:
    if value is None:
        return f"`{field.column}` IS NULL"
    word = field.get_db_prep_value(value, connections[router.db_for_read(field.model)])
    if isinstance(word, int):
        return f"`{field.column}` = {int(word)}"
    quoted = str(word).replace("\\", "\\\\").replace("'", "''")
    return f"`{field.column}` = '{quoted}'"


def key_type(field: Any) -> str:
    """Returns the type of a key as counterfoil names it."""
    connection = connections[router.db_for_read(field.model)]
    type = (field.rel_db_type if not field.is_relation else field.db_type)(connection)
    word = type.split("(")[0].split()[0]
    if "UNSIGNED" in type.upper() or getattr(field, "target_field", field).get_internal_type().endswith("AutoField"):
        return "unsigned"
    return TYPES.get(word, word)
