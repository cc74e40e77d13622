#!/usr/bin/env python3
"""Runs the Python of lua/README.md and of examples/python on a private Redis server, behind a proxy that loses requests
and replies, with the retries that redis-py has by default.

    readme.py SOCKET ROOT
"""
import contextlib
import importlib.util
import io
import os
import re
import sys
import tempfile
import threading
import time
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import redis
from redis.backoff import ExponentialBackoff, NoBackoff
from redis.retry import Retry

from lossy import HITS, Forgetful, Proxy, configure, pending, without_fence

IDS = ["a", "b", "c", "é/2014-09-20"]


def connect(socket, **options):
    """A client that resends by itself, as redis-py's do from 6 on if nothing is said."""
    if int(redis.__version__.split(".", 1)[0]) < 6:
        options["retry"] = Retry(ExponentialBackoff(0.1, 0.01), 3)
        options["retry_on_error"] = [redis.ConnectionError, redis.TimeoutError]
    return redis.Redis(unix_socket_path=socket, socket_timeout=2, **options)


def expect(what, got, expected):
    if got != expected:
        sys.exit(f"{what}: expected {expected!r}, got {got!r}")


@contextlib.contextmanager
def raises(what, error):
    try:
        yield
    except error:
        return
    sys.exit(f"{what}: {error.__name__} was not raised")


class Checks:
    def __init__(self, socket, proxy):
        self.socket, self.proxy, self.redis = socket, proxy, redis.Redis(unix_socket_path=socket)
        self.lossy = connect(proxy.socket)

    def empty(self, *families, kind="buffered", **settings):
        """An empty Redis with these families."""
        self.redis.flushall()
        for family in families:
            configure(self.redis, "lua", family, kind, **settings)

    def hits(self, what, hit, family):
        """Four threads make 300 hits while requests and replies get lost."""
        lost, failures, started = dict(self.proxy.lost), [], time.monotonic()

        def work(id):
            try:
                for _ in range(HITS // len(IDS)):
                    hit(id)
            except Exception as error:  # pylint: disable=broad-except
                failures.append(error)

        threads = [threading.Thread(target=work, args=(id,)) for id in IDS]
        with Forgetful(self.redis, "lua", family):
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        time.sleep(0.4)  # for what is late
        expect(f"{what}: failures", failures, [])
        lost = {fate: self.proxy.lost[fate] - before for fate, before in lost.items()}
        print(f"{what}: {HITS} hits, lost {lost}, {time.monotonic() - started:.1f} s")

    def exact(self, what, hit, family, there):
        self.hits(what, hit, family)
        expect(f"{what}: counted", there(), {id: HITS // len(IDS) for id in IDS})

    def buffered(self, what, make, hit, unknown):
        """What a client of buffered counters must do; `make` makes one with a connection and the scripts of a folder."""
        family = "shop-12345/product_views"
        self.empty(family)
        counter = make(self.lossy, "lua/v1")
        self.exact(what, lambda id: hit(counter, id), family, lambda: pending(self.redis, family))
        self.empty(family)
        with tempfile.TemporaryDirectory() as folder:
            unfenced = make(self.lossy, without_fence("lua", f"{folder}/lua") + "/v1")
            self.hits(f"{what} without the fence", lambda id: hit(unfenced, id), family)
        there = sum(pending(self.redis, family).values())
        print(f"{what} without the fence: {there} there")
        expect(f"{what} without the fence: more than {HITS}", there > HITS, True)
        self.forks(what, make(self.redis, "lua/v1"), hit, family)
        self.forgotten(what, make, hit, unknown, family)

    def forks(self, what, counter, hit, family):
        """A process and its child are callers with names of their own."""
        self.empty(family)
        hit(counter, "a")
        child = os.fork()
        if child == 0:
            try:
                hit(counter, "a")
                os._exit(0)
            finally:
                os._exit(1)
        hit(counter, "a")
        expect(f"{what}: the child", os.waitpid(child, 0)[1], 0)
        expect(f"{what}: hits of a process and its child", pending(self.redis, family), {"a": 3})

    def forgotten(self, what, make, hit, unknown, family):
        """The reply of a hit is lost, and with it the memory of Redis, which is configured again."""
        self.empty(family)
        client = connect(self.socket)
        counter = make(client, "lua/v1")
        hit(counter, "a")
        execute, losses = client.execute_command, [True]

        def lose(*args, **options):
            reply = execute(*args, **options)
            if losses and losses.pop():
                self.empty(family)
                raise redis.ConnectionError("lost on the way back")
            return reply

        client.execute_command = lose
        with raises(f"{what}: a hit whose outcome is unknown", unknown):
            hit(counter, "a")
        expect(f"{what}: nothing was done", pending(self.redis, family), {})
        hit(counter, "a")
        expect(f"{what}: and it goes on", pending(self.redis, family), {"a": 1})

    def refused(self, readme):
        """What is not counted, and what may be a misuse: the caller is notified."""
        self.empty("shop/views")
        make = lambda client=self.lossy, family="shop/views": readme["Counter"](client, "lua/v1", family)
        counter, other = make(), make()
        counter.hit("max", 2**63 - 1)
        with raises("a sum beyond i64", readme["NotCounted"]):
            counter.hit("max")
        with raises("a family that was never configured", readme["NotCounted"]):
            make(family="shop/veiws").hit("a")
        other.hit("a")
        configure(self.redis, "lua", "shop/views", "buffered", 9)
        with raises("another number of partitions", readme["OutcomeUnknown"]):
            other.hit("a")  # behind the proxy an earlier arrival may have been executed
        with raises("another number of partitions", readme["NotCounted"]):
            other.hit("a")
        self.empty("shop/views")
        with raises("a family of another kind", readme["NotCounted"]):
            make().count("cached_incr", 0, ["base", "buffer", "batch", "meta"], [30000, "", "", 1, "a", 1])
        with raises("decode_responses", readme["NotCounted"]):
            make(connect(self.socket, decode_responses=True)).hit("a")
        first, second = make(), make()
        first.hit("b")
        first.hit("b")
        second.callers = {caller: [name, 0] for caller, (name, _) in first.callers.items()}
        with raises("a caller's name in two processes", readme["OutcomeUnknown"]):
            second.hit("b")
        fresh = make(redis.Redis(unix_socket_path=self.socket))
        fresh.hit("b")
        self.redis.config_set("maxmemory", 1)
        with raises("a full Redis", readme["NotCounted"]):
            fresh.hit("a")
        self.redis.config_set("maxmemory", 0)
        readme["time"] = SimpleNamespace(monotonic=count(1, 4).__next__, sleep=lambda seconds: None)
        with raises("no Redis", readme["NotCounted"]):
            make(redis.Redis(unix_socket_path="/nowhere", retry=Retry(NoBackoff(), 0))).hit("a")
        readme["time"] = time
        expect("refused", pending(self.redis, "shop/views"), {"b": 3})

    def cached(self, readme):
        """Each change has a value of its own, also where the counter has to be seeded from its row first."""
        self.empty("shop/stock", kind="cached", retain=600000, min=0)
        stock = readme["Cached"](self.lossy, "lua/v1", "shop/stock")
        values = {id: [] for id in IDS}
        change = lambda id: values[id].append(stock.change(id, 1, lambda id: 0))
        self.exact("cached", change, "shop/stock", lambda: pending(self.redis, "shop/stock"))
        for id in IDS:
            expect(f"cached: values of {id}", sorted(values[id]), [*range(1, HITS // len(IDS) + 1)])
        no_row = lambda id: sys.exit("cached: the row was read although the counter has a base")
        expect("cached: from a row", stock.change("x", -2, lambda id: 5), 3)
        expect("cached: from Redis", stock.change("x", -3, no_row), 0)
        expect("cached: beyond 2^53", stock.change("y", 1, lambda id: 2**62), 2**62 + 1)
        with raises("cached: out of bounds", readme["NotCounted"]):
            stock.change("x", -1, no_row)

    def example(self):
        spec = importlib.util.spec_from_file_location("count_hits", "examples/python/count_hits.py")
        example = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(example)

        def make(client, scripts):
            example.SCRIPTS = Path(scripts)
            return example.Counter(client, "shop-12345", "product_views")

        def hit(counter, id):
            [(_, result)] = counter.add({id: 1}).items()
            if isinstance(result, Exception):
                raise result

        self.buffered("example", make, hit, example.OutcomeUnknown)
        self.empty("shop-12345/product_views")
        counter = make(connect(self.socket), "lua/v1")
        expect("example: what it returns", counter.add({"a": 2**63 - 1, "b": -2}), {"a": 2**63 - 1, "b": -2})
        results = counter.add({"a": 1, "b": -2})
        expect("example: what it returns", (str(results["a"]), results["b"]), ("RANGE", -4))
        expect("example: beyond a call", len(counter.add({f"p{i}": 1 for i in range(2500)})), 2500)
        self.empty("shop/views")
        with contextlib.redirect_stdout(io.StringIO()):
            example.main([f"unix://{self.socket}", "--namespace", "shop", "--family", "views", "--hits", "1000"])
        expect("example: hits", sum(pending(self.redis, "shop/views").values()), 1000)


def keys_and_fields(client):
    """The keys that the calls of the other kinds left, by name and number of items, without the fence's and those of meta."""
    size = {b"hash": client.hlen, b"zset": client.zcard, b"set": client.scard}
    keys = {key.decode().rsplit("}:", 1)[1]: size[client.type(key)](key) for key in client.keys()}
    return {name: size for name, size in sorted(keys.items()) if name not in ("calls", "calls_before", "meta")}


def main(socket, root):
    os.chdir(root)
    text = Path("lua/README.md").read_text(encoding="utf-8")
    source, cached, *kinds = re.findall(r"^```python\n(.*?)^```$", text, re.S | re.M)
    client = redis.Redis(unix_socket_path=socket)
    client.flushall()
    configure(client, "lua", "shop-12345/product_views", "buffered")
    acl = re.search(r"^    (~cf1:.*)$", text, re.M)[1].replace("NAMESPACE", "shop-12345").split()
    client.execute_command("ACL", "SETUSER", "shop", "reset", "on", ">password", *acl)
    sys.argv = ["snippet", socket]
    readme, printed = {"__name__": "readme"}, io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(source, "lua/README.md", "exec"), readme)  # pylint: disable=exec-used
    expect("what the snippet prints", printed.getvalue(), "counted\n")
    expect("what the snippet counts", pending(client, "shop-12345/product_views"), {"product-1": 1})
    exec(compile(cached, "lua/README.md", "exec"), readme)  # pylint: disable=exec-used
    with Proxy(socket) as proxy:
        checks = Checks(socket, proxy)
        make = lambda client, scripts: readme["Counter"](client, scripts, "shop-12345/product_views")
        checks.buffered("snippet", make, lambda counter, id: counter.hit(id), readme["OutcomeUnknown"])
        checks.refused(readme)
        checks.cached(readme)
        checks.example()

    readme["client"] = redis.Redis(unix_socket_path=socket, username="shop", password="password")
    others = [
        ("hits", "series", {"windows": [["60s", 120], ["3600s", 24]], "keep": ["60s"], "time_zone": "UTC"},
         {"idle": 1, "names": 1, "open": 1, "schedule": 1, "series:3600s:site": 1, "series:60s:site": 1}),
        ("here", "activity", {"layer": 3000, "window": 600000, "stripes": 16, "visitors": "exact", "keep_minutes": False},
         {"views:4:cart": 1, "visitors:4:cart": 1}),
        ("daily", "visitors", {"remember": 108000000}, {"buffer": 1, "seen:12345/2014-09-20": 1}),
    ]
    expect("snippets of other kinds", len(kinds), len(others))
    for source, (name, kind, settings, left) in zip(kinds, others):
        client.flushall()
        configure(client, "lua", f"shop-12345/{name}", kind, **settings)
        exec(compile(source, "lua/README.md", "exec"), readme)  # pylint: disable=exec-used
        expect("what a call leaves", keys_and_fields(client), left)
    print("passed")


if __name__ == "__main__":
    main(*sys.argv[1:])
