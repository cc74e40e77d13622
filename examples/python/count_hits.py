#!/usr/bin/env python3
"""Counts hits on made-up products through counterfoil's Lua bundle; see the README beside this file."""
import argparse, os, queue, random, secrets, threading, time, zlib
from collections import Counter as Tally
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

SCRIPTS = Path(__file__).resolve().parents[2] / "lua" / "v1"
SYNC_HITS, SYNC_MS, MAX_PENDING = 50, 60_000, 1_000_000


class OutcomeUnknown(Exception):
    """The hits were counted or were not, and nobody can tell."""


class Counter:
    """One family of counters. Threads may share it, and so may processes that were forked after it was made."""

    def __init__(self, client, namespace, family, partitions):
        self.redis, self.tag, self.partitions = client, f"cf1:{{{namespace}/{family}/%d}}:", partitions
        self.scripts = {name: (SCRIPTS / f"{name}.lua").read_bytes() for name in ("buffered_register", "buffered_add")}
        self.sha1 = {name: client.script_load(source) for name, source in self.scripts.items()}
        self.lanes = {}

    def add(self, deltas):
        """Adds each delta to its id, with one call a partition. For each id it answers what is pending in Redis now, or
        "RANGE" or "FULL" where the delta was not counted. If it raises, the other partitions may have been counted."""
        partitions, answers = {}, {}
        for id, delta in deltas.items():
            partitions.setdefault(zlib.crc32(id.encode()) % self.partitions, []).append((id, delta))
        for partition, pairs in partitions.items():
            pending = self._add(partition, pairs)
            for (id, _), word in zip(pairs, pending):
                answers[id] = word.decode() if word in (b"RANGE", b"FULL") else int(word)
        return answers

    def _add(self, partition, pairs):
        keys = [self.tag % partition + kind for kind in ("buffer", "meta", "producers")]
        # a lane is a producer with one call in flight; the threads that wait for one share those that are there
        lanes = self.lanes.setdefault((os.getpid(), partition), queue.SimpleQueue())
        try:
            producer, seq, until = lanes.get_nowait()
        except queue.Empty:
            producer, seq, until = None, 0, -1
        if time.monotonic() > until:  # a new one, or one that Redis is about to forget
            producer, seq = secrets.token_hex(8), 0
            self._call("buffered_register", keys[2:], lambda attempt: [producer, ""])
        flat = [item for pair in pairs for item in pair]
        hits = min(sum(abs(delta) for _, delta in pairs), SYNC_HITS)  # with so many a sync is due anyway
        status, *answer = self._call("buffered_add", keys, lambda attempt: [
            producer, seq + 1, attempt, hits, SYNC_HITS, SYNC_MS, MAX_PENDING, "", *flat])
        if status == b"UNKNOWN":
            raise OutcomeUnknown("Redis lost its memory while a reply was missing")
        lanes.put((producer, seq + 1, time.monotonic() + 12 * 3600))  # not where the outcome is unknown
        return answer[1:]

    def _call(self, name, keys, arguments, patience=10):
        attempt, loaded, deadline = "first", True, time.monotonic() + patience
        while time.monotonic() < deadline:
            try:
                if not loaded:
                    self.redis.script_load(self.scripts[name])
                return self.redis.evalsha(self.sha1[name], len(keys), *keys, *arguments(attempt))
            except redis.exceptions.NoScriptError:
                loaded = False  # Redis was started again, or told to forget it; not executed
                continue
            except (redis.ConnectionError, redis.TimeoutError):
                attempt = "repeat"  # it may have been executed
            except redis.ResponseError as error:
                if attempt == "first" or str(error).startswith("BAD"):
                    raise  # surely not executed
            time.sleep(random.uniform(0.01, 0.1))
        raise OutcomeUnknown(f"no answer within {patience} s")


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("redis", help="redis://HOST:PORT or unix://SOCKET")
    parser.add_argument("--namespace", default="example")
    parser.add_argument("--family", default="page_views")
    parser.add_argument("--partitions", type=int, default=8, help="the same for everybody who uses the family")
    parser.add_argument("--hits", type=int, default=10_000)
    parser.add_argument("--threads", type=int, default=4)
    args = parser.parse_args(arguments)
    # redis-py must not send again by itself: it would not say that it repeats
    client = redis.Redis.from_url(args.redis, socket_timeout=2, retry=Retry(NoBackoff(), 0))
    counter = Counter(client, args.namespace, args.family, args.partitions)
    shares = [len(range(i, args.hits, args.threads)) for i in range(args.threads)]

    def visit(hits):
        for start in range(0, hits, 50):  # 50 hits a call
            counter.add(Tally(f"product-{random.randint(1, 20)}" for _ in range(min(50, hits - start))))

    threads = [threading.Thread(target=visit, args=(hits,)) for hits in shares]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(f"{args.hits} hits counted")


if __name__ == "__main__":
    main()
