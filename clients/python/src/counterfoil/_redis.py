"""The connection to redis-py: the scripts that are sent, the clients that send them, and what their errors mean."""

from __future__ import annotations

import asyncio
import hashlib
import re
import sys
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

# errors of a call, also those that redis-py raises when a connection breaks within a reply. The others are not
# caught: an application may raise them in the handler of a signal
FAILURES: tuple[type[Exception], ...] = (redis.RedisError, redis.exceptions.RedisClusterException)
FAILURES += (asyncio.TimeoutError, OSError, AttributeError, LookupError, TypeError, ValueError)
LOST = "no reply"
NOT_SENT = "UNREACHABLE"
CONNECTING = {"LOADING", "BUSY", "CLUSTERDOWN", "MASTERDOWN", "TRYAGAIN", "READONLY"}
REPEATED = CONNECTING | {LOST, "NOREPLICAS", NOT_SENT}
OUTAGE = {LOST, NOT_SENT, "LOADING", "BUSY", "CLUSTERDOWN", "MASTERDOWN"}  # no other call would get a reply
CONNECTING |= {"NOAUTH", NOT_SENT}  # errors of a new connection, after the call may have been sent over another one
NOT_COUNTED = {"OOM", "MISCONF", "WRONGTYPE", "BADSTATE"}
MISCONFIGURED = {"NOAUTH", "BADARG", "BADKEY", "CROSSSLOT", "MOVED", "ASK"}
FULL = "max number of clients reached"  # the reply on a new connection that Redis closes at once

# errors that redis-py does not name after their code
_CODES = {
    "AuthenticationError": "NOAUTH",
    "BusyLoadingError": "LOADING",
    "ClusterCrossSlotError": "CROSSSLOT",
    "NoPermissionError": "NOPERM",
    "OutOfMemoryError": "OOM",
}


class Command(str):
    """The name of a command. redis-py encodes it once for each send of the command, also for those that it
    repeats by itself. A tracer or logger may encode it as well, which does not count."""

    sends = 0

    def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        caller = sys._getframe(1)
        is_packer = caller.f_code.co_name in ("pack", "pack_command")
        if is_packer and caller.f_globals.get("__name__", "").startswith("redis."):
            self.sends += 1
        return super().encode(encoding, errors)


def code_of(error: Exception, is_cluster: bool) -> str:
    """Returns the code of an error that Redis sent, or `LOST` if there was no whole reply."""
    name = type(error).__name__
    if is_cluster and name in ("MovedError", "AskError"):
        return "TRYAGAIN"  # slots are being moved
    if name in _CODES:
        return _CODES[name]
    if type(error) is redis.ResponseError:
        # Redis 6.2 wraps the errors of commands in a script
        wrapped = re.search(r"rror running script.*?-([A-Z]+)", str(error))
        code = wrapped or re.match(r"([A-Z]+)\b", str(error))
        return code[1] if code else "ERR"
    if isinstance(error, redis.ResponseError):  # such as NoScriptError
        return name.replace("Error", "").upper()
    return NOT_SENT if FULL in str(error) else LOST


def refusal(code: str, error: Exception, was_lost: bool) -> CounterfoilError:
    """Returns the error of a call. After a lost reply a refusal proves nothing about the send before: that one may
    have been executed."""
    explanation = str(error) or repr(error)
    if "CERTIFICATE_VERIFY_FAILED" in explanation:
        explanation += ": connect(tls_ca=FILE) names the authority of the server, tls_verify=False accepts any"
    if code in ("CROSSSLOT", "MOVED", "ASK"):
        explanation += ": the server is a cluster, use RedisCluster"
    if was_lost or code not in NOT_COUNTED | REPEATED | MISCONFIGURED:
        return OutcomeUnknown(code, explanation)
    if code in MISCONFIGURED:
        return Misconfigured(code, explanation)
    return NotCounted(code, explanation, temporary=code not in ("WRONGTYPE", "BADSTATE"))


class Address(NamedTuple):
    """The address of a client that makes its own connections: a URL, or nodes of a cluster."""

    address: str | Sequence[str]
    timeout: float
    tls_ca: str | None = None
    tls_verify: bool = True

    def connect(self, library: Any) -> Any:
        """Makes a client whose own retries are off: only this package repeats a call."""
        retry, timeout = library.retry.Retry(NoBackoff(), 0), self.timeout
        options = {"socket_timeout": timeout, "socket_connect_timeout": timeout, "retry": retry, **self._tls()}
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

    def _tls(self) -> dict[str, Any]:
        has_tls = all(node.startswith("rediss://") for node in ([self.address] if isinstance(self.address, str) else self.address))
        options: dict[str, Any] = {"ssl_ca_certs": self.tls_ca} if self.tls_ca else {}
        if not self.tls_verify:
            options.update(ssl_cert_reqs="none", ssl_check_hostname=False)
        if options and not has_tls:
            raise Misconfigured("OPTION", "tls_ca and tls_verify need an address with rediss://")
        return options


def checked(client: Any, library: Any) -> Any:
    """Returns a client. Raises `Misconfigured` for one that is of another kind, or that decodes replies."""
    is_pipeline = isinstance(client, (library.client.Pipeline, library.cluster.ClusterPipeline))
    if is_pipeline or not isinstance(client, (library.Redis, library.RedisCluster)):
        raise Misconfigured("CLIENT", f"expected a client of {library.__name__}, not {client!r}")
    if client.get_encoder().decode_responses:
        raise Misconfigured("DECODED", "the client has decode_responses=True: make one that returns bytes")
    return client
