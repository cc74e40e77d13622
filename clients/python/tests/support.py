"""Connections to the servers of the tests, and helpers."""

import asyncio
import itertools
import json
import os
import socket
import subprocess
import sys
import time
import unittest

import redis
import redis.asyncio

import counterfoil

SOCKET = os.environ["COUNTERFOIL_TEST_SOCKET"]
NAMESPACE = os.environ["COUNTERFOIL_TEST_NAMESPACE"]
DAEMON = os.environ["COUNTERFOIL_TEST_DAEMON"]

_numbers = itertools.count()


def new_id():
    """Returns an id that no other test uses."""
    return f"id-{os.getpid()}-{next(_numbers)}"


def plain():
    return redis.Redis(unix_socket_path=SOCKET)


def plain_asyncio(**options):
    """Returns a client of asyncio. It is made in a loop, since Python 3.9 needs one."""

    async def make():
        return redis.asyncio.Redis(unix_socket_path=SOCKET, **options)

    return asyncio.run(make())


def calls_of(family):
    """Returns the callers of a family, and the least number of calls that each made: its number grows by 2^20 at most."""
    fields = plain().hgetall(f"cf1:{{{NAMESPACE}/{family}/0}}:calls")
    return {name: int(n.split()[0]) / 2**20 for name, n in fields.items() if not name.startswith(b"=")}


def pending(family, id):
    """Returns what Redis has pending of an id in all partitions."""
    keys = plain().scan_iter(f"cf1:{{{NAMESPACE}/{family}/*}}:buffer")
    return sum(int(plain().hget(key, id) or 0) for key in keys)


def run_python(program, *args):
    """Runs a program in another process, and returns what it printed as JSON."""
    done = subprocess.run([sys.executable, "-c", program, SOCKET, NAMESPACE, *args], stdout=subprocess.PIPE, check=False)
    return done.returncode, json.loads(done.stdout or b"null")


def in_child(function):
    """Forks, and returns the number of the child, which ends after the function."""
    child = os.fork()
    if child == 0:
        try:
            function()
        finally:
            os._exit(0)
    return child


def silent_server(case):
    """Yields a socket that accepts connections, and never replies."""
    server = socket.socket()
    case.addCleanup(server.close)
    server.bind(("127.0.0.1", 0))
    server.listen(100)
    return "127.0.0.1:%d" % server.getsockname()[1]


def attempts_of(session):
    """Returns a list of the attempts to send a call from now on."""
    execute, attempts = session.execute, []

    async def noted(*args):
        attempts.append(args)
        return await execute(*args)

    session.execute = noted
    return attempts


class Stop(Exception):
    """The exception that an application raises in the handler of a signal."""


class Case(unittest.TestCase):
    def assert_pending(self, family, id, count):
        """Waits until the hits that are sent in the background have arrived."""
        end = time.monotonic() + 5
        while pending(family, id) != count and time.monotonic() < end:
            time.sleep(0.01)
        self.assertEqual(pending(family, id), count)

    def assert_recovers(self, function, *args):
        """Calls until an outage is over, and returns the result."""
        end = time.monotonic() + 10
        while True:
            try:
                return function(*args)
            except counterfoil.NotCounted:
                if time.monotonic() > end:
                    raise
                time.sleep(0.02)

    def assert_raises(self, kind, reason, function, *args, **options):
        with self.assertRaises(kind) as raised:
            function(*args, **options)
        self.assertEqual(raised.exception.reason, reason)
        return raised.exception


def connected(**options):
    return counterfoil.Counterfoil.connect(f"unix://{SOCKET}", NAMESPACE, daemon=DAEMON, **options)
