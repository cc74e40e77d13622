"""Shows what an outage costs the pages of an application, by sync workers and with asyncio, while Redis and the daemon are refused
(stopped), silent (SIGSTOP), or dropped (a listening socket that never accepts). Prints p50 and worst times in milliseconds, and
fails if they are longer than promised.
"""

import asyncio
import itertools
import json
import logging
import multiprocessing
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import redis

import counterfoil
import counterfoil.asyncio

FAULTS = "refused", "silent", "dropped"
NAMESPACE, SECONDS, WORKERS, CONCURRENT = "show", 2.5, 3, 10
FAMILIES = {
    "views": ("buffered",),
    "readers": ("activity", "layer", "10000", "layers", "30", "keep_minutes", "0", "stripes", "1"),
    "daily": ("visitors",),
}


class Server:
    """A process that listens on a port, and can be replaced by a fault."""

    def __init__(self, stack, *command):
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self._stack = stack
        self._process = subprocess.Popen([*command, str(self.port)], stdout=subprocess.DEVNULL)
        stack.callback(self._kill)
        while True:
            with suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", self.port)):
                break
            time.sleep(0.02)

    def _kill(self):
        self._process.kill()
        self._process.wait()

    def fail(self, fault):
        if fault == "silent":
            self._process.send_signal(signal.SIGSTOP)
            return
        self._kill()
        if fault == "dropped":
            listening = self._stack.enter_context(socket.create_server(("127.0.0.1", self.port), backlog=0))
            for _ in range(3):  # connections that fill its queue
                waiting = self._stack.enter_context(socket.socket())
                waiting.setblocking(False)
                waiting.connect_ex(listening.getsockname())


def configure(port):
    script = Path(counterfoil.__file__).with_name("lua").joinpath("v1", "family_configure.lua").read_text()
    description = json.dumps({"ids": r"[\s\S]{1,255}", "ids_in_words": "", "separator": "/", "wide": False, "stripes": 1})
    with redis.Redis(port=port) as client:
        for family, (kind, *settings) in FAMILIES.items():
            keys = [f"cf1:{{{NAMESPACE}/{family}/0}}:{name}" for name in ("calls", "meta")]
            client.eval(script, 2, *keys, "salt", "", kind, "1", "", description, *settings)


def serve_values(port):
    """A daemon whose values are 7 for each id."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = 10_000  # so that a reply is one segment

        def do_POST(self):
            ids = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["ids"]
            body = json.dumps({"values": [7] * len(ids)}).encode()
            self.send_response(200)
            self.send_header("Content-Length", len(body))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


def page_of(name, client):
    """The calls of a page, with the library of the client."""
    views, readers, daily = client.buffered("views"), client.activity("readers"), client.visitors("daily")
    visitors = (f"visitor-{number}" for number in itertools.count())
    return {
        "later": lambda: [lambda: views.later("front")],
        "counting": lambda: [
            lambda: views.add("front"),
            lambda: daily.first_visit("front", "2026-11-28", next(visitors)),
            lambda: readers.touch("front", next(visitors)),
        ],
        "values": lambda: [lambda: views.value("front", 0)] * 10,
    }[name]


def serve_pages(page, until, times):
    while time.monotonic() < until:
        start = time.monotonic()
        for call in page():
            with suppress(counterfoil.CounterfoilError):
                call()
        times.append(time.monotonic() - start)
        time.sleep(0.01)


async def serve_pages_of_asyncio(page, until, times):
    while time.monotonic() < until:
        start = time.monotonic()
        for call in page():
            with suppress(counterfoil.CounterfoilError):
                result = call()
                if result is not None:
                    await result
        times.append(time.monotonic() - start)
        await asyncio.sleep(0.01)


def work(name, is_async, ports, parent):
    """A worker, which serves pages before the outage and in it, until SIGTERM."""
    logging.disable()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    package = counterfoil.asyncio if is_async else counterfoil
    client = package.Counterfoil.connect(f"redis://127.0.0.1:{ports[0]}", NAMESPACE, daemon=f"http://127.0.0.1:{ports[1]}")
    page = page_of(name, client)

    async def main():
        all_times = []
        for seconds in (0.1, SECONDS):
            parent.recv()
            times = []
            until = time.monotonic() + seconds
            if is_async:
                await asyncio.gather(*(serve_pages_of_asyncio(page, until, times) for _ in range(CONCURRENT)))
            else:
                serve_pages(page, until, times)
            all_times.append(times)
            parent.send(times)
        while True:
            await asyncio.sleep(0.1) if is_async else signal.pause()

    with suppress(SystemExit, counterfoil.CounterfoilError):
        if is_async:
            asyncio.run(main())
        else:
            with suppress(StopIteration):
                main().send(None)


def show(fault):
    """Returns the rows of a fault: for each kind of page p50 and worst before it, then in it, and the longest end."""
    fork, rows = multiprocessing.get_context("fork"), {}
    with ExitStack() as stack:
        redis_server = Server(stack, os.environ.get("COUNTERFOIL_REDIS_SERVER", "redis-server"), "--save", "", "--port")
        daemon = Server(stack, sys.executable, __file__, "daemon")
        configure(redis_server.port)
        workers = []
        for name, is_async in itertools.product(("later", "counting", "values"), (False, True)):
            for _ in range(1 if is_async else WORKERS):
                pipe, other = fork.Pipe()
                process = fork.Process(target=work, args=(name, is_async, (redis_server.port, daemon.port), other))
                process.start()
                stack.callback(process.kill)
                workers.append((f"{name}, {'asyncio' if is_async else 'sync'}", pipe, process))
        for phase in range(2):
            for _, pipe, _ in workers:
                pipe.send("go")
            for name, pipe, _ in workers:
                rows.setdefault(name, ([], [], []))[phase].extend(pipe.recv())
            if phase == 0:
                redis_server.fail(fault)
                daemon.fail(fault)
        start = time.monotonic()
        for _, _, process in workers:
            process.terminate()
        for name, _, process in workers:
            process.join(40)
            rows[name][2].append(time.monotonic() - start)
    return rows


def main():
    print(f"{'':27}{'before p50':>12}{'worst':>9}{'outage p50':>12}{'worst':>9}{'SIGTERM':>10}   ms")
    problems = []
    for fault in FAULTS:
        for name, (before, during, ends) in show(fault).items():
            p50, worst, end = statistics.median(during), max(during), max(ends)
            numbers = [statistics.median(before), max(before), p50, worst, end]
            print(f"{fault + ': ' + name:27}" + "".join(f"{n * 1e3:{width}.1f}" for n, width in zip(numbers, (12, 9, 12, 9, 10))))
            # the package promises 0 for `later`, 1 s once for calls that count, 0.5 s once for reads, and 5 s for the end
            most = 0.3 if name.startswith("later") else 2 if name.startswith("counting") else 1.2
            if p50 > 0.02 or worst > most or end > 6:
                problems.append(f"{fault}: {name}")
    return problems


if __name__ == "__main__":
    if sys.argv[1:2] == ["daemon"]:
        serve_values(int(sys.argv[2]))
    else:
        sys.exit("\n".join(main()) or None)
