"""Makes the calls of a scenario with the installed package: a line of JSON for each, and a line for each reply."""

import asyncio
import inspect
import json
import os
import queue
import sys
import threading

import redis
import redis.asyncio

import counterfoil
import counterfoil.asyncio
import counterfoil.testing

ERRORS = {
    counterfoil.NotCounted: "not_counted",
    counterfoil.OutcomeUnknown: "outcome_unknown",
    counterfoil.Misconfigured: "misconfigured",
}
writing = threading.Lock()


def write(reply):
    with writing:
        print(json.dumps(reply), flush=True)


def opened(line):
    if line["library"] == "testing":
        return counterfoil.testing.Counterfoil(line["namespace"], line["families"], **(line.get("options") or {}))
    is_async = line["library"] == "asyncio"
    package, library = (counterfoil.asyncio, redis.asyncio) if is_async else (counterfoil, redis)
    timeout = line.get("timeout", 2)
    nodes, options = line.get("nodes"), line.get("options") or {}
    if line.get("own"):
        address = nodes or f"unix://{line['socket']}"
        return package.Counterfoil.connect(address, line["namespace"], timeout=timeout, **options)
    if nodes:
        client = library.RedisCluster.from_url(f"redis://{nodes[0]}", socket_timeout=timeout)
    else:
        client = library.Redis(unix_socket_path=line["socket"], socket_timeout=timeout)
    return package.Counterfoil(client, line["namespace"], **options)


def call_of(client, line):
    """Returns a function that makes the call of a line."""
    method = getattr(getattr(client, line["kind"])(line["family"]), line["call"])
    return lambda: method(*line.get("args") or [])


def plain(value):
    """Returns a result as scenarios write it: an error is an object."""
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    return failure(value) if isinstance(value, counterfoil.CounterfoilError) else value


def failure(error):
    kind = ERRORS.get(type(error))
    if kind is None:
        return {"error": "escaped", "reason": f"{type(error).__name__}: {error}"}
    value = getattr(error, "value", None)
    return {"error": kind, "reason": error.reason, **({} if value is None else {"value": value})}


def made(client, line):
    try:
        return {"id": line["id"], "returns": plain(call_of(client, line)())}
    except Exception as error:
        return {"id": line["id"], **failure(error)}


async def made_async(client, line):
    try:
        result = call_of(client, line)()
        return {"id": line["id"], "returns": plain(await result if inspect.isawaitable(result) else result)}
    except (Exception, asyncio.CancelledError) as error:
        return {"id": line["id"], **failure(error)}


def forked(make):
    """Makes a call in a forked child, and returns its reply. The child ends after the call."""
    reading, writing_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing_end, json.dumps(make()).encode())
        os._exit(0)
    os.close(writing_end)
    with os.fdopen(reading) as pipe:
        reply = json.loads(pipe.read())
    os.waitpid(child, 0)
    return reply


def serve(client, lines):
    while (line := lines.get()) is not None:
        name = line.get("as") or "main"
        write(forked(lambda: made(client, line)) if name == "fork" or name.startswith("fork:") else made(client, line))


def run_threads(client):
    """Runs the lines of each name in order: those of `main` in this thread, the others in a thread for each name."""
    lines = {"main": queue.Queue()}
    threads = []

    def read():
        for text in sys.stdin:
            line = json.loads(text)
            name = line.get("as") or "main"
            name = "main" if name == "fork" else name
            if name not in lines:
                lines[name] = queue.Queue()
                threads.append(threading.Thread(target=serve, args=(client, lines[name])))
                threads[-1].start()
            lines[name].put(line)
        for one in lines.values():
            one.put(None)

    threading.Thread(target=read).start()
    serve(client, lines["main"])
    for thread in threads:
        thread.join()
    client.close()


async def run_tasks(first):
    client = opened(first)
    loop = asyncio.get_running_loop()
    lines, tasks = {}, []

    async def serve_task(name):
        while (line := await lines[name].get()) is not None:
            if name == "fork" or name.startswith("fork:"):
                write({"id": line["id"], "skipped": "a client of asyncio belongs to one event loop, and a loop to one process"})
            else:
                write(await made_async(client, line))

    write({"ready": True})
    while text := await loop.run_in_executor(None, sys.stdin.readline):
        line = json.loads(text)
        name = line.get("as") or "main"
        if name not in lines:
            lines[name] = asyncio.Queue()
            tasks.append(asyncio.create_task(serve_task(name)))
        lines[name].put_nowait(line)
    for one in lines.values():
        one.put_nowait(None)
    await asyncio.gather(*tasks)
    await client.close()


if __name__ == "__main__":
    opening = json.loads(sys.stdin.readline())["open"]
    if opening["library"] == "asyncio":
        asyncio.run(run_tasks(opening))
    else:
        threaded = opened(opening)
        write({"ready": True})
        run_threads(threaded)
