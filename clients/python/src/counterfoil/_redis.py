"""What the package needs of redis-py, and the scripts that it sends."""

from __future__ import annotations

import hashlib
import re
from importlib.resources import files
from typing import Any, Sequence
from urllib.parse import urlsplit

import redis
import redis.backoff

from ._errors import Misconfigured

SCRIPTS = {}  # name: SHA-1 and source
for _file in files("counterfoil").joinpath("lua").joinpath("v1").iterdir():
    SCRIPTS[_file.name[: -len(".lua")]] = hashlib.sha1(_file.read_bytes()).hexdigest(), _file.read_bytes()

LOST = ""
NO_BACKOFF: Any = redis.backoff.NoBackoff
NOT_SENT = "UNREACHABLE"

# redis-py takes these codes out of the text of an error
_CODES = {
    **{"NoScriptError": "NOSCRIPT", "BusyLoadingError": "LOADING", "ReadOnlyError": "READONLY", "TryAgainError": "TRYAGAIN"},
    **{"MasterDownError": "MASTERDOWN", "ClusterDownError": "CLUSTERDOWN", "MovedError": "MOVED", "AskError": "ASK"},
    **{"ClusterCrossSlotError": "CROSSSLOT", "OutOfMemoryError": "OOM", "NoPermissionError": "NOPERM", "DataError": "BADARG"},
    **{"AuthenticationError": "NOAUTH", "AuthenticationWrongNumberOfArgsError": "NOAUTH", "MaxConnectionsError": NOT_SENT},
}


def code_of(error: BaseException, is_own: bool) -> str:
    """Returns the code of an error that Redis sent, `NOT_SENT`, or `LOST` if there was no whole reply.

    A failure to connect proves that a call was not sent only on a connection of our own: others may repeat calls.
    """
    for kind in type(error).__mro__:
        if kind.__name__ in _CODES:
            return _CODES[kind.__name__]
    if isinstance(error, redis.ResponseError):
        # Redis 6.2 wraps the errors of commands in a script
        code = re.search(r"rror running script.*?-([A-Z]+)", str(error)) or re.match(r"([A-Z]+)\b", str(error))
        return code[1] if code else "ERR"
    return NOT_SENT if is_own and "connecting to" in str(error) else LOST


def connect(address: str | Sequence[str], library: Any, retry: Any, timeout: float) -> Any:
    """Makes a client whose own retries are off, so that a call is sent once at a time, by us."""
    options: dict[str, Any] = {"socket_timeout": timeout, "socket_connect_timeout": timeout, "retry": retry(NO_BACKOFF(), 0)}
    if isinstance(address, str):
        return library.Redis.from_url(address, **options)
    if int(redis.__version__.split(".")[0]) < 6:
        options["cluster_error_retry_attempts"] = 0
    urls = [node if "://" in node else f"redis://{node}" for node in address]
    others = [library.cluster.ClusterNode(url.hostname, url.port or 6379) for url in map(urlsplit, urls[1:])]
    return library.RedisCluster.from_url(urls[0], startup_nodes=others, **options)


def check(client: Any, library: Any) -> None:
    """Raises `Misconfigured` for a client that is of another kind, or that decodes replies."""
    is_pipeline = isinstance(client, (library.client.Pipeline, library.cluster.ClusterPipeline))
    if is_pipeline or not isinstance(client, (library.Redis, library.RedisCluster)):
        raise Misconfigured("CLIENT", f"expected a Redis or RedisCluster of {library.__name__}, not {client!r}")
    if client.get_encoder().decode_responses:
        raise Misconfigured("DECODED", "the client has decode_responses=True: make one that returns bytes")
