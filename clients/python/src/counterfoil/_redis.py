"""What the package needs to know of redis-py."""

import re
from typing import Any, Dict, Sequence, Union
from urllib.parse import urlsplit

import redis
from redis import exceptions
from redis.backoff import NoBackoff

from ._errors import Misconfigured

LOST = ""
NOT_SENT = "UNREACHABLE"

_CODES = [
    (exceptions.NoScriptError, "NOSCRIPT"),
    (exceptions.BusyLoadingError, "LOADING"),
    (exceptions.ReadOnlyError, "READONLY"),
    (exceptions.MasterDownError, "MASTERDOWN"),
    (exceptions.ClusterDownError, "CLUSTERDOWN"),
    (exceptions.TryAgainError, "TRYAGAIN"),
    (exceptions.MovedError, "MOVED"),
    (exceptions.AskError, "ASK"),
    (exceptions.ClusterCrossSlotError, "CROSSSLOT"),
    (exceptions.OutOfMemoryError, "OOM"),
    (exceptions.NoPermissionError, "NOPERM"),
    (exceptions.AuthenticationError, "NOAUTH"),
    (exceptions.AuthenticationWrongNumberOfArgsError, "NOAUTH"),
    (exceptions.MaxConnectionsError, NOT_SENT),
    (exceptions.DataError, "BADARG"),
]


def code_of(error: BaseException, own: bool) -> str:
    """Returns the code of an error that Redis sent, `NOT_SENT`, or `LOST` if there was no whole reply.

    A failure to connect proves that a call was not sent only on a connection of our own: others may repeat calls.
    """
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    text = str(error)
    if isinstance(error, exceptions.ResponseError):
        # Redis 6.2 wraps the errors of commands in a script
        wrapped = re.search(r"[Ee]rror running script.*?-([A-Z]+)", text)
        first = re.match(r"[A-Z]+\b", text)
        return wrapped[1] if wrapped else first[0] if first else "ERR"
    return NOT_SENT if own and "connecting to" in text else LOST


def check(client: Any, kinds: "tuple[type, ...]", pipelines: "tuple[type, ...]") -> None:
    """Raises `Misconfigured` for a client that is of another kind, or that decodes replies."""
    if not isinstance(client, kinds) or isinstance(client, pipelines):
        names = " or ".join(f"{kind.__module__.split('.')[0]}.{kind.__name__}" for kind in kinds)
        raise Misconfigured("CLIENT", f"expected a client of {names}, blocking or asyncio like Counterfoil, not {client!r}")
    encoder: Any = client.get_encoder()  # type: ignore[attr-defined]
    if encoder.decode_responses:
        raise Misconfigured("DECODED", "the client has decode_responses=True: replies are bytes, make a client without it")


def connect(address: Union[str, Sequence[str]], package: Any, retry: Any, timeout: float) -> Any:
    """Makes a client whose own retries are off, so that a call is sent once at a time, by us."""
    options: Dict[str, Any] = {"socket_timeout": timeout, "socket_connect_timeout": timeout, "retry": retry(NoBackoff(), 0)}
    if isinstance(address, str):
        return package.Redis.from_url(address, **options)
    if int(redis.__version__.split(".")[0]) < 6:
        options["cluster_error_retry_attempts"] = 0
    urls = [node if "://" in node else f"redis://{node}" for node in address]
    others = [package.cluster.ClusterNode(parts.hostname, parts.port or 6379) for parts in map(urlsplit, urls[1:])]
    return package.RedisCluster.from_url(urls[0], startup_nodes=others, **options)
