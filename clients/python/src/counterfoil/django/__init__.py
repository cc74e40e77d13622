"""Counters in Django: `pip install "counterfoil[bots]"`, and in the settings

    INSTALLED_APPS = [..., "counterfoil.django"]
    COUNTERFOIL = {
        "REDIS": "redis://localhost",
        "NAMESPACE": "shop",
        "DAEMON": "http://127.0.0.1:9292",
        "TOML": BASE_DIR / "counterfoil.toml",  # lets manage.py check compare it with the models
    }

Further names are the options of `Counterfoil.connect` in capitals, such as `RETRY_FOR`. `client()` is the client of the
process, for everything else that the package can. It connects with its first call, also in a forked worker.

- `CounterField` is a column in which a family counts, and `Counts` counts rows in it when they commit.
- `@counts_views`, `CountsViews` and `count_view` count views of pages.
- `with_exact_values(products, "views_count")` and `{% load counterfoil %}{% exact_values products "views_count" %}` read
  the values of all rows by one call, with what is not in MySQL yet; `{% exact_value product "views_count" %}` shows one.
- `manage.py counterfoil_toml` writes the daemon's file. Then run `manage.py check --database default`, which names
  collations and defaults that the daemon refuses.
- `counterfoil.django.tasks.delay_count("downloads", 7)` counts in a task of Celery: once, however often it runs.
- In tests `"REDIS": "memory"` counts in the process, and `TestCase.captureOnCommitCallbacks(execute=True)` counts rows.
"""

from ._client import client as client
from ._rows import CounterField as CounterField
from ._rows import Counts as Counts
from ._rows import with_exact_values as with_exact_values
from ._views import CountsViews as CountsViews
from ._views import count_view as count_view
from ._views import counts_views as counts_views
