"""Columns that counterfoil counts in, and rows that are counted when their transaction commits."""

from __future__ import annotations

import functools
from contextlib import nullcontext
from typing import Any, Dict, Iterable, Sequence, Tuple, TypeVar

from django.db import models, router, transaction
from django.db.models.signals import class_prepared, pre_delete

from ._client import client, count_or_log

M = TypeVar("M", bound=models.Model)
COLUMN: Any = object()
DECLARED: list[tuple[Any, Counts]] = []  # with their models


class CounterField(models.BigIntegerField):
    """A column in which a family counts: `views_count = CounterField("product_views")`.

    `save()` does not write it, so that an object that was read a while ago reverts nothing. With `keys`, the names of
    the fields of a unique key, counterfoil also inserts missing rows. In a family of kind `visitors` these are a scope
    and a day: `visitors = CounterField("product_visitors", kind="visitors", keys=["product", "day"])`.

    Migrations see a `BigIntegerField`.
    """

    def __init__(self, family: str, *, kind: str = "buffered", keys: Sequence[str] = (), **options: Any) -> None:
        self.family, self.kind, self.keys = family, kind, keys
        super().__init__(**{"default": 0, "editable": False, **options})

    def deconstruct(self) -> Any:
        name, _, args, options = super().deconstruct()
        return name, "django.db.models.BigIntegerField", args, options

    def clone(self) -> Any:
        _, _, args, options = self.deconstruct()
        return models.BigIntegerField(*args, **options)

    def pre_save(self, row: Any, add: bool) -> Any:
        return super().pre_save(row, add) if add else models.F(self.attname)

    @property
    def key_fields(self) -> list[Any]:
        return [self.model._meta.get_field(name) for name in self.keys] or [self.model._meta.pk]

    @property
    def counters(self) -> Any:
        return getattr(client(), self.kind)(self.family)

    def id_of(self, row: Any) -> Any:
        """Returns the id of a row in the family."""
        words = tuple(id_in(field, row) for field in self.key_fields)
        return words if self.kind == "visitors" else "/".join(words)


def id_in(field: Any, row: Any) -> str:
    connection = transaction.get_connection(router.db_for_write(type(row), instance=row))
    return str(field.get_db_prep_value(getattr(row, field.attname), connection))


def with_exact_values(rows: Iterable[M], *columns: str, default: Any = COLUMN) -> list[M]:
    """Sets exact values in the columns of all rows, by one call for each column. Where none arrives in time they stay
    as they were read, or get the default. The rows of a queryset keep them."""
    rows = list(rows)
    for column in columns if rows else ():
        field: Any = rows[0]._meta.get_field(column)
        shown = [getattr(row, column) if default is COLUMN else default for row in rows]
        values = field.counters.values([field.id_of(row) for row in rows], lambda error: shown)
        for row, value in zip(rows, values):
            setattr(row, column, value)
    return rows


class Counts:
    """Counts the rows of a model in a `CounterField` of what its foreign key refers to.

        class Save(models.Model):
            product = models.ForeignKey(Product, on_delete=models.CASCADE)
            counted = Counts("product", "saves_count")

    `where={"deleted_at": None, "is_public": True}` counts the rows with these values only, and `sum="points"` adds up
    a column of integers. The counts follow the commit of rows that are created, saved and deleted: what several saves
    in a transaction change is counted together. The column lags by the family's `sync_time`.

    Like Django's signals it does not see `bulk_create`, `bulk_update`, `update` of a queryset, plain SQL, and what uses
    these: `add`, `set`, `remove` and `clear` of related objects, and `on_delete=SET_DEFAULT`. The recount, which
    `counterfoil_toml` writes with the family, corrects that, and what a crash between commit and count loses.

    Before a row is saved again or deleted, it is locked and read. So if two requests delete the same row at once, it
    counts once.
    """

    def __init__(
        self, parent: str, column: str, *, where: dict[str, Any] | None = None, sum: str | None = None
    ) -> None:
        self.parent, self.column, self.where, self.sum = parent, column, where or {}, sum

    def contribute_to_class(self, model: Any, name: str) -> None:
        setattr(model, name, self)
        save_base = model.save_base

        @functools.wraps(save_base)
        def counted(row: Any, *args: Any, using: str | None = None, **options: Any) -> None:
            using, among = using or router.db_for_write(type(row), instance=row), options.get("update_fields")
            with transaction.atomic(using) if transaction.get_autocommit(using) else nullcontext():
                fields = [f for f in self._fields(row) if among is None or {f.name, f.attname} & set(among)]
                is_inserted = options.get("force_insert") or is_new(row)
                old = {} if is_inserted or not fields else self._stored(row, using)
                save_base(row, *args, using=using, **options)
                self._note(using, old, {**old, **{f: f.to_python(getattr(row, f.attname)) for f in fields}})

        model.save_base = counted
        class_prepared.connect(functools.partial(self._prepare, model), weak=False)

    def _prepare(self, model: Any, sender: Any, **_: Any) -> None:
        # a proxy sends signals of its own. A child with a table of its own does not count: its parent's row, which is
        # deleted with it, does
        if issubclass(sender, model) and sender._meta.get_field(self.parent).model is sender._meta.concrete_model:
            pre_delete.connect(self._deleted, sender, weak=False)
            if not sender._meta.proxy:
                DECLARED.append((sender, self))

    def _deleted(self, instance: Any, using: str, **_: Any) -> None:
        self._note(using, self._stored(instance, using), {})

    def _fields(self, row: Any) -> list[Any]:
        return [row._meta.get_field(name) for name in (self.parent, *self.where, self.sum) if name]

    def _stored(self, row: Any, using: str) -> dict[Any, Any]:
        """Locks the row, and returns the values of its fields; none if there is no row."""
        fields = self._fields(row)
        rows = type(row)._base_manager.using(using).select_for_update().filter(pk=row.pk)
        found = rows.values_list(*(field.attname for field in fields))
        return {field: value for values in found for field, value in zip(fields, values)}

    def _note(self, using: str, old: dict[Any, Any], new: dict[Any, Any]) -> None:
        for row, sign in (old, -1), (new, 1):
            values = {field.name: (field, value) for field, value in row.items()}
            parent, key = values.get(self.parent, (None, None))
            if key is None or any(values[name][1] != values[name][0].to_python(n) for name, n in self.where.items()):
                continue
            id = str(parent.get_db_prep_value(key, transaction.get_connection(using)))
            net = net_of(using)
            hit = parent.related_model._meta.get_field(self.column).family, id
            net[hit] = net.get(hit, 0) + sign * (int(values[self.sum][1] or 0) if self.sum else 1)


def is_new(row: Any) -> bool:
    """Returns whether a save inserts the row without trying to update it first."""
    return bool(row._state.adding and (row.pk is None or row._meta.pk.has_default()))


class Net(Dict[Tuple[str, str], int]):
    """The changes of a transaction, or of one of its savepoints, by family and id. Its call counts them."""

    def __call__(self) -> None:
        for (family, id), delta in self.items():
            if delta:
                count_or_log(client().buffered(family), id, delta)


def net_of(using: str) -> Net:
    connection = transaction.get_connection(using)
    open_savepoints = {*connection.savepoint_ids, None}  # None stands for an atomic block without a savepoint
    for savepoints, hook, *_ in connection.run_on_commit:  # a rollback to a savepoint drops its hooks
        if isinstance(hook, Net) and savepoints | {None} == open_savepoints:
            return hook
    net = Net()
    transaction.on_commit(net, using)
    return net
