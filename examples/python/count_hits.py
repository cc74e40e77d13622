#!/usr/bin/env python3
"""Counts hits on made-up products through counterfoil's Lua bundle; see the README beside this file."""
import argparse, hashlib, os, random, re, secrets, threading, time, zlib
from collections import Counter as Tally
from itertools import groupby
from pathlib import Path

import redis
from redis.exceptions import DataError, NoScriptError, ResponseError

SCRIPTS = Path(__file__).resolve().parents[2] / "lua" / "v1"
PAIRS = 1000  # of one call at most
PASSES = re.compile("LOADING|BUSY|CLUSTERDOWN|MASTERDOWN|TRYAGAIN|READONLY")
# any other error may come from the middle of a script
NOTHING_DONE = re.compile("DATAERROR|MEMORY|MISCONF|NOREPLICAS|WRONGTYPE|BADARG|BADKEY|BADSTATE|CROSSSLOT")


class NotCounted(Exception):
    """The hits were not counted, and a repeat would not count them either."""


class OutcomeUnknown(Exception):
    """The hits were counted once or not at all."""


class Counter:
    """One buffered family. Threads may share it, and so may processes that were forked after it was made."""

    def __init__(self, client, namespace, family):
        self.redis, self.tag, self.partitions = client, f"cf1:{{{namespace}/{family}/%d}}:", None
        self.is_cluster = isinstance(client, redis.RedisCluster)
        self.scripts = {name: (SCRIPTS / f"{name}.lua").read_bytes() for name in ("family_epoch", "buffered_add")}
        self.epochs, self.callers = {}, {}

    def add(self, deltas):
        """Adds each delta to its id. Returns for each id what is pending in Redis now, None where it was counted but that
        reply was lost, or an exception: NotCounted or OutcomeUnknown. Calls fail one by one, so it may be some of each."""
        results = {}
        try:
            self._epoch(self._keys(0, "calls", "calls_before"))  # which tells how many partitions there are
        except NotCounted as error:
            return dict.fromkeys(deltas, error)
        for home, items in self._calls(deltas):
            try:
                results.update(zip((id for _, id, _ in items), self._add(home, items)))
            except (NotCounted, OutcomeUnknown) as error:
                results.update((id, error) for _, id, _ in items)
        return results

    def _calls(self, deltas):
        """Home and (partition, id, delta)... of each call: in a cluster its partition, else 0 with all partitions."""
        items = sorted((zlib.crc32(id.encode()) % self.partitions, id, delta) for id, delta in deltas.items())
        for home, group in groupby(items, lambda item: item[0] if self.is_cluster else 0):
            group = list(group)
            for start in range(0, len(group), PAIRS):
                yield home, group[start : start + PAIRS]

    def _add(self, home, items):
        fence = self._keys(home, "calls", "calls_before")
        keys, args = list(fence), []
        for partition, pairs in groupby(items, lambda item: item[0]):
            pairs = [(id, delta) for _, id, delta in pairs]
            keys += self._keys(partition, "buffer", "meta")
            hits = min(sum(abs(delta) for _, delta in pairs), 1000)  # they only say when a sync is due
            args += [hits, len(pairs), *(word for pair in pairs for word in pair)]
        epoch = self._epoch(fence)
        # a caller is a thread, which has one call in flight; the process number, since threads are forked
        caller = self.callers.setdefault((os.getpid(), threading.get_ident()), [secrets.token_hex(8), 0])
        caller[1] += 1
        status, *reply = self._send("buffered_add", keys, [*caller, epoch, "", *args])
        if status == b"PASSED":
            raise OutcomeUnknown("the caller has made a later call: its name is used twice")
        if status == b"EXPIRED":
            self.epochs.pop(fence[0], None)
            raise OutcomeUnknown("Redis lost its memory, or the call took too long")
        if status == b"DUP":
            refused = dict(word.split(":") for word in reply[0].decode().split())
            return [NotCounted(refused[str(i)]) if str(i) in refused else None for i in range(1, len(items) + 1)]
        results, at = [], 0
        for _, group in groupby(items, lambda item: item[0]):
            words = reply[at + 1 : at + 1 + len(list(group))]  # after the partition's total
            at += 1 + len(words)
            results += [NotCounted(word.decode()) if isinstance(word, bytes) and word.isalpha() else int(word) for word in words]
        return results

    def _epoch(self, fence):
        """The epoch for a new call: what was asked for less than 30 s ago."""
        asked_at = time.monotonic()
        epoch, until = self.epochs.get(fence[0], ("", 0))
        if asked_at < until:
            return epoch
        status = b"UNCONFIGURED"
        while status == b"UNCONFIGURED" and time.monotonic() < asked_at + 3:  # after a loss of memory for about a second
            try:
                status, *words = self._send("family_epoch", fence, ["buffered", self.partitions or "", "", ""])
            except OutcomeUnknown as error:
                raise NotCounted("no epoch") from error
            time.sleep(0 if words else 0.2)
        *epochs, kind, partitions = words[:4] or [None, None]
        if kind == b"buffered":
            self.partitions = int(partitions)
        if status != b"OK":
            raise NotCounted(f"{status.decode()}: there is no such family, or it was changed: {words}")
        self.epochs[fence[0]] = epochs[0], asked_at + 30
        return epochs[0]

    def _keys(self, partition, *names):
        return [self.tag % partition + name for name in names]

    def _send(self, script, keys, args):
        """Sends a call until there is a reply, for 10 s; redis-py and proxies may repeat it as they like."""
        source, was_lost, deadline = self.scripts[script], False, time.monotonic() + 10
        call = "EVALSHA", hashlib.sha1(source).hexdigest()
        while True:
            try:
                return self.redis.execute_command(*call, len(keys), *keys, *args)
            except NoScriptError:
                call = "EVAL", source  # Redis was started again, or told to forget it; not executed
            except Exception as error:  # pylint: disable=broad-except
                text = f"{type(error)} {error}".upper()
                if isinstance(error, (ResponseError, DataError)) and not PASSES.search(text):
                    is_refused = NOTHING_DONE.search(text) and not was_lost
                    raise (NotCounted if is_refused else OutcomeUnknown)(str(error)) from error
                if time.monotonic() > deadline:
                    raise OutcomeUnknown(str(error)) from error
                was_lost = True  # an arrival of this call may have been executed, or may still be
                time.sleep(random.uniform(0.01, 0.1))


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("redis", help="redis://HOST:PORT or unix://SOCKET")
    parser.add_argument("--cluster", action="store_true", help="it is a node of a Redis Cluster")
    parser.add_argument("--namespace", default="example")
    parser.add_argument("--family", default="page_views")
    parser.add_argument("--hits", type=int, default=10_000)
    parser.add_argument("--threads", type=int, default=4)
    args = parser.parse_args(arguments)
    client = (redis.RedisCluster if args.cluster else redis.Redis).from_url(args.redis, socket_timeout=2)
    counter = Counter(client, args.namespace, args.family)
    shares = [len(range(i, args.hits, args.threads)) for i in range(args.threads)]
    outcomes, lock = Tally(), threading.Lock()

    def visit(hits):
        for start in range(0, hits, 50):  # 50 hits a call
            deltas = Tally(f"product-{random.randint(1, 20)}" for _ in range(min(50, hits - start)))
            results = counter.add(deltas)
            with lock:
                for id, delta in deltas.items():
                    is_error = isinstance(results[id], Exception)
                    outcomes[type(results[id]).__name__ if is_error else "counted"] += delta

    threads = [threading.Thread(target=visit, args=(hits,)) for hits in shares]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(", ".join(f"{outcome}: {hits}" for outcome, hits in sorted(outcomes.items())))


if __name__ == "__main__":
    main()
