"""Measures the package beside plain HINCRBY of redis-py, blocking or with asyncio, in short rounds that alternate, and prints
medians as JSON: bench.py SOCKET NAMESPACE redis-py|asyncio
"""

import asyncio
import itertools
import json
import statistics
import sys
import threading
import time
import zlib

import redis
import redis.asyncio

import counterfoil
import counterfoil.asyncio
from counterfoil._redis import SHA1

SOCKET, NAMESPACE, LIBRARY = sys.argv[1:]
ROUNDS, SECONDS, CALLERS, ID = 5, 0.3, 64, "page-1"
samples = {}
server = redis.Redis(unix_socket_path=SOCKET)


def sample(name, value):
    samples.setdefault(name, []).append(value)


def bare_call():
    """Returns the words of a call of buffered_add without a caller, which Redis does not remember."""
    keys = [(0, "calls"), (0, "calls_before"), (zlib.crc32(ID.encode()) % 4, "buffer"), (zlib.crc32(ID.encode()) % 4, "meta")]
    keys = ["cf1:{%s/views/%d}:%s" % (NAMESPACE, *key) for key in keys]
    return ("EVALSHA", SHA1["buffered_add"], 4, *keys, "", 1, "", "", 0, 1, 1, ID, 1)


async def done(result):
    return await result if hasattr(result, "__await__") else result


async def latency(name, call):
    """Samples the median time of one caller's calls, in microseconds."""
    times, end = [], time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        start = time.perf_counter()
        result = call()
        if hasattr(result, "__await__"):
            await result
        times.append(time.perf_counter() - start)
    sample(f"{name}_p50_us", statistics.median(times) * 1e6)


async def throughput(name, call, callers=1, finish=lambda: None):
    """Samples hits per second, and microseconds of Redis's CPU time per hit."""
    hits, start, used = [0] * callers, time.perf_counter(), server.info("cpu")
    end = start + SECONDS

    def in_thread(number):
        while time.perf_counter() < end:
            call()
            hits[number] += 1

    async def in_task(number):
        while time.perf_counter() < end:
            await call()
            hits[number] += 1

    if LIBRARY == "asyncio":
        await asyncio.gather(*(in_task(number) for number in range(callers)))
    else:
        threads = [threading.Thread(target=in_thread, args=(number,)) for number in range(callers)]
        for step in (threading.Thread.start, threading.Thread.join):
            for thread in threads:
                step(thread)
    await done(finish())
    sample(f"{name}_per_s", sum(hits) / (time.perf_counter() - start))
    seconds = sum(server.info("cpu")[key] - used[key] for key in ("used_cpu_user", "used_cpu_sys"))
    sample(f"cpu {name}", seconds * 1e6 / sum(hits))


def later(views):
    """Returns a call of `later`. With asyncio it yields once in 100 hits, so that the task that sends sums runs."""
    if LIBRARY != "asyncio":
        return lambda: views.later(ID)

    async def call():
        views.later(ID)
        if next(turns) % 100 == 0:
            await asyncio.sleep(0)

    turns = itertools.count()
    return call


async def main():
    library, package = (redis.asyncio, counterfoil.asyncio) if LIBRARY == "asyncio" else (redis, counterfoil)
    bare = bare_call()
    for _ in range(ROUNDS):
        client = library.Redis(unix_socket_path=SOCKET, socket_timeout=2, max_connections=2 * CALLERS)
        views = package.Counterfoil(client, NAMESPACE).buffered("views")
        hincrby, add = (lambda: client.hincrby("bench", ID, 1)), (lambda: views.add(ID))
        await done(add())  # loads the script
        for name, call in (("hincrby", hincrby), ("evalsha", lambda: client.execute_command(*bare)), ("add", add)):
            await done(call())
            await latency(name, call)
        await throughput("hincrby_64", hincrby, CALLERS)
        await throughput("add_64", add, CALLERS)
        await throughput("hincrby", hincrby)
        await throughput("later", later(views), finish=views.flush)
        await done(client.aclose() if LIBRARY == "asyncio" else client.close())
    medians = {name: round(statistics.median(values), 2) for name, values in samples.items()}
    cpu = {name[4:]: medians.pop(name) for name in list(medians) if name.startswith("cpu ")}
    print(json.dumps({**medians, "cpu_us_per_hit": cpu}))


asyncio.run(main())
