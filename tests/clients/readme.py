#!/usr/bin/env python3
"""Runs the Python of lua/README.md and of examples/python on a private Redis server, and then takes replies away from it.

    readme.py SOCKET ROOT
"""
import contextlib
import importlib.util
import io
import os
import random
import re
import sys
import threading
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

IDS = ["a", "b", "c", "é/2014-09-20"]


class Unreliable(redis.Redis):
    """A client whose calls get lost on their way there, or on their way back, and whose scripts get forgotten."""

    chance = 0.0
    on_loss = staticmethod(lambda: None)

    def script_load(self, script):
        if random.random() < self.chance:
            raise redis.ConnectionError("lost on the way there")
        return super().script_load(script)

    def evalsha(self, *args):
        if random.random() < self.chance:
            raise redis.ConnectionError("lost on the way there")
        if random.random() < self.chance:
            self.script_flush()
        reply = super().evalsha(*args)
        if random.random() < self.chance:
            self.on_loss()
            raise redis.TimeoutError("lost on the way back")
        return reply


def pending(client):
    """What is pending, and how many hits were counted."""
    sums = {}
    for key in client.keys("cf1:{*}:buffer"):
        for id, delta in client.hgetall(key).items():
            sums[id.decode()] = sums.get(id.decode(), 0) + int(delta)
    return sums, sum(int(client.hget(key, "hits")) for key in client.keys("cf1:{*}:meta"))


def expect(what, got, expected):
    if got != expected:
        sys.exit(f"{what}: expected {expected!r}, got {got!r}")


def values(client):
    """The values of cached counters, and their sum."""
    found = {}
    for key in client.keys("cf1:{*}:values"):
        found.update({id.decode(): int(value) for id, value in client.hgetall(key).items()})
    return found, sum(found.values())


def exact_in_spite_of_losses(what, client, hit, count=pending):
    """Four threads count; every third call loses something."""
    client.flushall()
    client.chance = 0.12
    failures = []

    def work():
        try:
            for i in range(60):
                hit(IDS[i % len(IDS)])
        except Exception as error:  # pylint: disable=broad-except
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    client.chance = 0.0
    expect(f"{what}: failures", failures, [])
    expect(f"{what}: counts", count(client), ({id: 60 for id in IDS}, 240))


def tells_when_redis_forgot(what, client, hit, unknown):
    """The reply of a hit is lost, and with it the memory of Redis."""
    hit("a")
    losses = iter([True])

    def forget():
        client.chance = 0.0
        client.flushall()

    evalsha = client.evalsha

    def lose(*args):
        reply = redis.Redis.evalsha(client, *args)
        if next(losses, None):
            forget()
            raise redis.TimeoutError("lost on the way back")
        return reply

    client.evalsha = lose
    try:
        hit("a")
        sys.exit(f"{what}: a hit of which nothing is known was called counted")
    except unknown:
        pass
    finally:
        client.evalsha = evalsha
    expect(f"{what}: nothing was done", pending(client), ({}, 0))
    hit("a")
    expect(f"{what}: and it goes on", pending(client), ({"a": 1}, 1))


def changes_cached_counters(client, readme):
    """Each change is answered with a value of its own, also where the counter has to be brought from its row first."""
    stock = readme["Cached"](client, "lua/v1", "shop-12345", "stock", 8)
    answers = {id: [] for id in IDS}
    exact_in_spite_of_losses(
        "cached", client, lambda id: answers[id].append(stock.change(id, 1, lambda id: ("-", "-"))), values)
    for id in IDS:
        expect(f"cached: answers for {id}", sorted(answers[id]), [*range(1, 61)])
    no_row = lambda id: sys.exit("cached: the row was read although the counter is there")
    expect("cached: from a row", stock.change("x", -2, lambda id: (5, "00000000000000aa:3"), low=0), 3)
    expect("cached: from Redis", stock.change("x", -3, no_row, low=0), 0)
    expect("cached: beyond 2^53", stock.change("y", 1, lambda id: (2**62, "-")), 2**62 + 1)
    try:
        stock.change("x", -1, no_row, low=0)
        sys.exit("cached: a change out of bounds was called counted")
    except readme["NotCounted"]:
        pass


def counts_in_slices(client, readme):
    """Hits in slices of seconds, minutes and months, each once at each."""
    series = readme["Series"](client, "lua/v1", "shop-12345", "hits", 8)

    def months(_):
        keys = {key: client.hvals(key) for key in client.keys("cf1:{*}:series:month:*")}
        found = {key.decode().split(":")[-1]: sum(map(int, counts)) for key, counts in keys.items()}
        return found, sum(found.values())

    exact_in_spite_of_losses("series", client, series.count, months)
    for id in IDS:
        minutes = series.window(id, "60s", 60, 120)
        expect(f"series: the window of {id}", (len(minutes), sum(count for _, count in minutes)), (120, 60))


def tells_who_is_here(client, readme):
    """Views and visitors of pages, each once, whatever gets lost."""
    here, came = readme["Here"](client, "lua/v1", "shop-12345", "here", 8), set()

    def touch(page):
        visitor = random.choice([b"\0", b"\xff", *(b"v%d" % i for i in range(20))])
        here.touch(page, visitor)
        came.add((page, visitor))

    def views(_):
        found = {page: here.now(page)[0] for page in IDS}
        return found, sum(found.values())

    exact_in_spite_of_losses("here", client, touch, views)
    for page in IDS:
        expect(f"here: visitors of {page}", here.now(page)[1], sum(its_page == page for its_page, _ in came))
    expect("here: a page that nobody touched", here.now("none"), (0, 0))


def main(socket, root):
    os.chdir(root)
    client = Unreliable(unix_socket_path=socket, retry=Retry(NoBackoff(), 0))

    text = Path("lua/README.md").read_text(encoding="utf-8")
    source, *others = re.findall(r"^```python\n(.*?)^```$", text, re.S | re.M)
    expect("lines of the snippet, 50 at most", len(source.splitlines()) <= 50, True)
    sys.argv = ["snippet", socket]
    readme, printed = {"__name__": "readme"}, io.StringIO()
    client.flushall()
    with contextlib.redirect_stdout(printed):
        exec(compile(source, "lua/README.md", "exec"), readme)  # pylint: disable=exec-used
    expect("what the snippet prints", printed.getvalue(), "1\n")
    expect("what the snippet counts", pending(client), ({"product-1": 1}, 1))
    counter = readme["Counter"](client, "lua/v1", "shop-12345", "product_views", 8)
    exact_in_spite_of_losses("snippet", client, counter.hit)
    tells_when_redis_forgot("snippet", client, counter.hit, readme["OutcomeUnknown"])
    counter.hit("max", 2**63 - 1)
    try:
        counter.hit("max")
        sys.exit("snippet: a refused hit was called counted")
    except readme["NotCounted"]:
        pass

    checks = {"Cached": changes_cached_counters, "Series": counts_in_slices, "Here": tells_who_is_here}
    for source in others:
        exec(compile(source, "lua/README.md", "exec"), readme)  # pylint: disable=exec-used
        checks.pop(re.search(r"class (\w+)\(Counter\)", source)[1])(client, readme)
    expect("snippets that are not there", list(checks), [])

    spec = importlib.util.spec_from_file_location("count_hits", "examples/python/count_hits.py")
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    counter = example.Counter(client, "shop-12345", "product_views", 8)
    exact_in_spite_of_losses("example", client, lambda id: counter.add({id: 1}))
    tells_when_redis_forgot("example", client, lambda id: counter.add({id: 1}), example.OutcomeUnknown)
    client.flushall()
    expect("example: what it answers", counter.add({"a": 2**63 - 1, "b": -2}), {"a": 2**63 - 1, "b": -2})
    expect("example: what it answers", counter.add({"a": 1, "b": -2}), {"a": "RANGE", "b": -4})
    client.flushall()
    with contextlib.redirect_stdout(printed):
        example.main([f"unix://{socket}", "--namespace", "shop", "--family", "views", "--hits", "1000"])
    expect("example: hits", sum(pending(client)[0].values()), 1000)
    print("passed")


if __name__ == "__main__":
    main(*sys.argv[1:])
