"""What the package needs of redis-py, and the scripts that it sends."""

from __future__ import annotations

import asyncio
import hashlib
import re
from importlib.resources import files
from typing import Any, NamedTuple, Sequence
from urllib.parse import urlsplit

import redis
from redis.backoff import NoBackoff

from ._errors import CounterfoilError, Misconfigured, NotCounted, OutcomeUnknown

SHA1, SOURCES = {}, {}
for _file in (files("counterfoil") / "lua" / "v1").iterdir():
    _sha1 = SHA1[_file.name[: -len(".lua")]] = hashlib.sha1(_file.read_bytes()).hexdigest()
    SOURCES[_sha1] = _file.read_bytes()

# of the library, also on a broken connection; an application raises others in the handler of a signal
FAILURES: tuple[type[Exception], ...] = (redis.RedisError, redis.exceptions.RedisClusterException)
FAILURES += (asyncio.TimeoutError, OSError, AttributeError, LookupError, TypeError, ValueError)
LOST = "no reply"
NOT_SENT = "UNREACHABLE"
REPEATED = {LOST, "LOADING", "BUSY", "CLUSTERDOWN", "MASTERDOWN", "TRYAGAIN", "READONLY"}
REPEATED |= {"NOREPLICAS", NOT_SENT}
# refusals of what the library may have sent before; a primary without replicas would know the call
RESENT = REPEATED - {"NOREPLICAS", NOT_SENT} | {"NOAUTH"}
NOT_COUNTED = {"OOM", "MISCONF", "WRONGTYPE", "BADSTATE"}
MISCONFIGURED = {"NOAUTH", "BADARG", "BADKEY", "CROSSSLOT", "MOVED", "ASK"}
# failures to connect: the second one is the reply on a connection that Redis closes again
UNSENT = re.compile("connecting to|max number of clients reached")
FULL_POOLS = "Too many connections", "No connection available."

# errors that redis-py does not name after their code
_CODES = {
    "AuthenticationError": "NOAUTH",
    "BusyLoadingError": "LOADING",
    "ClusterCrossSlotError": "CROSSSLOT",
    "NoPermissionError": "NOPERM",
    "OutOfMemoryError": "OOM",
}


def code_of(error: Exception, client: Any) -> str:
    """Returns the code of an error that Redis sent, `NOT_SENT`, or `LOST` if there was no whole reply.

    A failure to connect proves that a call was not sent only on a connection of our own: others may repeat
    calls.
    """
    name = type(error).__name__
    if client.is_cluster and name in ("MovedError", "AskError"):
        return "TRYAGAIN"  # slots are on the move
    if name in _CODES:
        return _CODES[name]
    if type(error) is redis.ResponseError:
        # Redis 6.2 wraps the errors of commands in a script
        wrapped = re.search(r"rror running script.*?-([A-Z]+)", str(error))
        code = wrapped or re.match(r"([A-Z]+)\b", str(error))
        return code[1] if code else "ERR"
    if isinstance(error, redis.ResponseError):  # such as NoScriptError
        return name.replace("Error", "").upper()
    if name == "MaxConnectionsError" or str(error) in FULL_POOLS:
        # RedisCluster asks its pool for each repeat of its own
        return LOST if client.is_cluster and not client.is_own else NOT_SENT
    is_unsent = client.is_own and UNSENT.search(str(error)) and not _follows_a_lost_reply(error)
    return NOT_SENT if is_unsent else LOST


def _follows_a_lost_reply(error: BaseException) -> bool:
    """RedisCluster asks other nodes when a reply is lost, and then raises the failure to connect to them."""
    chain = [error]
    for one in chain:
        chain += [other for other in (one.__cause__, one.__context__) if other and other not in chain]
    of_connections = [one for one in chain if isinstance(one, (redis.ConnectionError, redis.TimeoutError))]
    return any(not UNSENT.search(str(one)) for one in of_connections)


def refusal(code: str, error: Exception, was_lost: bool) -> CounterfoilError:
    """Returns what a caller gets. After a lost reply a refusal proves nothing about the earlier arrival."""
    explanation = str(error) or repr(error)
    if was_lost or code not in NOT_COUNTED | REPEATED | MISCONFIGURED:
        return OutcomeUnknown(code, explanation)
    if code in MISCONFIGURED:
        return Misconfigured(code, explanation)
    return NotCounted(code, explanation, temporary=code not in ("WRONGTYPE", "BADSTATE"))


class Address(NamedTuple):
    """Where a client connects by itself: a URL, or nodes of a cluster."""

    address: str | Sequence[str]
    timeout: float

    def connect(self, library: Any) -> Any:
        """Makes a client whose own retries are off, so that a call is sent once at a time, by us."""
        retry, timeout = library.retry.Retry(NoBackoff(), 0), self.timeout
        options = {"socket_timeout": timeout, "socket_connect_timeout": timeout, "retry": retry}
        if isinstance(self.address, str):
            try:
                return checked(library.Redis.from_url(self.address, **options), library)
            except ValueError as error:
                raise Misconfigured("ADDRESS", str(error)) from error
        if int(redis.__version__.split(".")[0]) < 6:
            options["cluster_error_retry_attempts"] = 0
        first, *others = [node if "://" in node else f"redis://{node}" for node in self.address]
        urls = map(urlsplit, others)
        nodes = [library.cluster.ClusterNode(url.hostname, url.port or 6379) for url in urls]
        return checked(library.RedisCluster.from_url(first, startup_nodes=nodes, **options), library)


def checked(client: Any, library: Any) -> Any:
    """Returns a client. Raises `Misconfigured` for one that is of another kind, or that decodes replies."""
    is_pipeline = isinstance(client, (library.client.Pipeline, library.cluster.ClusterPipeline))
    if is_pipeline or not isinstance(client, (library.Redis, library.RedisCluster)):
        raise Misconfigured("CLIENT", f"expected a client of {library.__name__}, not {client!r}")
    if client.get_encoder().decode_responses:
        raise Misconfigured("DECODED", "the client has decode_responses=True: make one that returns bytes")
    return client
