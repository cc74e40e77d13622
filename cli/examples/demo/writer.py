#!/usr/bin/env python3
"""Counts what happens in made-up shops and a forum with redis-py and the client of lua/README.md, as the demo's writer.

    writer.py SOCKET LUA_DIR

It asks for a row by {"row": ID} and reads its value, and tells what was counted when it reads "stop".
"""
import json
import os
import queue
import random
import re
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path

import redis

RATE = 60  # calls a second
SHOPS, PRODUCTS, ITEMS, VISITORS = 5, 200, 100, 20_000
REMEMBER_MS = 72 * 3600 * 1000


def client_of_readme(lua):
    """Its classes, without the lines that use them."""
    text = Path(lua, "README.md").read_text(encoding="utf-8")
    counter, cached = re.findall(r"^```python\n(.*?)^```$", text, re.S | re.M)[:2]
    readme = {"__name__": "readme"}
    exec(counter.split("\nclient = ")[0] + "\n" + cached, readme)  # pylint: disable=exec-used
    return readme


def zipf(places):
    """1 is picked most, n 1/n as often."""
    return random.choices(range(1, places + 1), [1 / n for n in range(1, places + 1)])[0]


class Writer:
    def __init__(self, socket, lua):
        self.redis, self.lua = redis.Redis(unix_socket_path=socket, socket_timeout=2), lua
        self.readme, self.counters = client_of_readme(lua), {}
        self.rows, self.stopping = queue.Queue(), threading.Event()
        self.told, self.unknown = defaultdict(lambda: defaultdict(int)), 0

    def listen(self):
        for line in sys.stdin:
            self.stopping.set() if line == "stop\n" else self.rows.put(int(line))
        os._exit(0)  # the demo is over

    def row(self, id):
        print(json.dumps({"row": id}), flush=True)
        return self.rows.get()

    def counter(self, family, client="Counter"):
        if family not in self.counters:
            self.counters[family] = self.readme[client](self.redis, f"{self.lua}/v1", family)
        return self.counters[family]

    def view(self):
        shop = zipf(SHOPS)
        family, id = f"shop-{shop}/views", f"{shop}/product-{zipf(PRODUCTS)}"
        self.counter(family).hit(id)
        return family, id, 1

    def visit(self):
        shop, visitor = zipf(SHOPS), f"visitor-{random.randrange(VISITORS)}"
        family, id = f"shop-{shop}/visitors", f"{shop}/{time.strftime('%Y-%m-%d', time.gmtime())}"
        counter, keys = self.counter(family), ["buffer", "meta", f"seen:{id}"]
        word = counter.count("visitors_first", counter.partition(id), keys, [REMEMBER_MS, 1, id, 1, visitor])[-1]
        if not isinstance(word, int):
            raise self.readme["NotCounted"](id, word)
        return family, id, word

    def vote(self):
        id, change = str(zipf(ITEMS)), random.choice([1, 1, 1, -1])
        self.counter("forum/votes", "Cached").change(id, change, self.row)
        return "forum/votes", id, change

    def work(self):
        while not self.stopping.wait(random.expovariate(RATE)):
            action = random.choices([self.view, self.visit, self.vote], [6, 2, 2])[0]
            try:
                family, id, counted = action()
                self.told[family][id] += counted
            except self.readme["OutcomeUnknown"] as error:
                print(f"writer.py: {error!r}", file=sys.stderr)
                self.unknown += 1
        print(json.dumps({"told": {"sums": self.told, "unknown": self.unknown}}), flush=True)


if __name__ == "__main__":
    writer = Writer(*sys.argv[1:])
    listener = threading.Thread(target=writer.listen, daemon=True)
    listener.start()
    writer.work()
    listener.join()
