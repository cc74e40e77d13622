"""`{% load counterfoil %}`"""

from typing import Any, Iterable

from django import template

from counterfoil.django import with_exact_values

register = template.Library()


@register.simple_tag
def exact_value(row: Any, column: str) -> Any:
    """`{% exact_value product "views_count" %}` shows the exact value, or that of the column if none arrives in time."""
    return getattr(with_exact_values([row], column)[0], column)


@register.simple_tag
def exact_values(rows: Iterable[Any], *columns: str) -> str:
    """`{% exact_values products "views_count" %}` shows nothing, and sets exact values in the rows of a list or a
    queryset by one call: `{{ product.views_count }}` then has them."""
    with_exact_values(rows, *columns)
    return ""
