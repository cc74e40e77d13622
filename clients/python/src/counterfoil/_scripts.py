"""The Lua scripts inside the package."""

import hashlib
from importlib.resources import files
from typing import Dict, NamedTuple


class Script(NamedTuple):
    sha1: str
    source: bytes


def _load() -> Dict[str, Script]:
    scripts = {}
    for file in files("counterfoil").joinpath("lua", "v1").iterdir():
        if file.name.endswith(".lua"):
            source = file.read_bytes()
            scripts[file.name[: -len(".lua")]] = Script(hashlib.sha1(source).hexdigest(), source)
    return scripts


SCRIPTS = _load()
