#!/usr/bin/env python3
"""Loses requests and replies between a client and a private Redis server, and compares what was counted nevertheless.

    lossy.py SOCKET LUA_DIR CLIENT...

CLIENT... is a command, to which three arguments are added: the socket of a proxy, a folder like lua, and a number of hits.
It counts so many hits on ids of its choice in the buffered family shop/hits, and prints how many were
counted and of how many the outcome is unknown, as `{"counted": 300, "unknown": 0}`. It runs twice: with the scripts as they are
each hit must be there once, and with the fence taken out of them there must be more.
"""
import json
import random
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import redis

HITS = 300
FENCE = ("last_n and n - last_n", "false and n - last_n")


class Proxy:
    """A socket in front of the server's, whose connections break now and then while a request or a reply is under way."""

    def __init__(self, server, chance=0.15, within_replies=True):
        self.server, self.chance, self.within_replies = server, chance, within_replies
        self.lost = {"requests": 0, "replies": 0, "late": 0}

    def __enter__(self):
        self.folder = tempfile.mkdtemp()
        self.socket = f"{self.folder}/redis.sock"
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.socket)
        self.listener.listen(64)
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.listener.close()
        shutil.rmtree(self.folder)

    def _accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client):
        with client, socket.socket(socket.AF_UNIX) as server:
            try:
                server.connect(self.server)
                while self._pass_on(client, server):
                    pass
            except OSError:
                pass

    def _pass_on(self, client, server):
        """Passes on what has come, a request or a reply; False where the connection is to end."""
        source = select.select([client, server], [], [])[0][0]
        data = source.recv(1 << 20)
        if source is server or not data:
            client.sendall(data)
            return bool(data)
        fate = random.choice(list(self.lost)) if random.random() < self.chance else None
        if fate is None:
            server.sendall(data)
            return True
        self.lost[fate] += 1
        if fate == "requests":
            server.sendall(data[: random.randrange(len(data))])
            return False
        if fate == "late":  # by now the client has repeated it, and perhaps made other calls
            client.close()
            time.sleep(random.uniform(0, 0.3))
        server.sendall(data)
        reply = server.recv(1 << 20)
        if fate == "replies" and self.within_replies:
            client.sendall(reply[: random.randrange(len(reply))])
        return False


def configure(client, lua, family, kind, partitions=4, **settings):
    """Configures a family as the daemon does on a standalone server."""
    keys = [f"cf1:{{{family}/0}}:calls", *(f"cf1:{{{family}/{number}}}:meta" for number in range(partitions))]
    text = json.dumps({"kind": kind, **settings})
    script = Path(lua, "v1/family_configure.lua").read_text(encoding="utf-8")
    client.eval(script, len(keys), *keys, "salt", "", kind, partitions, 1000000, text, "")


class Forgetful:
    """As long as it lasts Redis forgets its scripts all the time, and begins one new epoch."""

    def __init__(self, client, lua, family):
        self.redis, self.ended = client, threading.Event()
        self.script = Path(lua, "v1/family_epoch.lua").read_text(encoding="utf-8")
        self.keys = [f"cf1:{{{family}/0}}:{name}" for name in ("calls", "calls_before")]
        self.thread = threading.Thread(target=self._forget)

    def __enter__(self):
        self.thread.start()

    def __exit__(self, *_):
        self.ended.set()
        self.thread.join()

    def _forget(self):
        has_begun = False
        while not self.ended.wait(0.05):
            self.redis.script_flush()
            if not has_begun and any(not field.startswith(b"=") for field in self.redis.hkeys(self.keys[0])) and random.random() < 0.1:
                has_begun = True
                self.redis.hset(self.keys[0], "=began_at", 0)
                self.redis.eval(self.script, 2, *self.keys, "", "", "", "")


def pending(client, family):
    """What the buffers of a family have: id -> delta."""
    sums = {}
    for key in client.keys(f"cf1:{{{family}/*}}:buffer"):
        for id, delta in client.hgetall(key).items():
            sums[id.decode()] = sums.get(id.decode(), 0) + int(delta)
    return sums


def without_fence(lua, folder):
    """A copy of the bundle whose scripts are executed as often as they arrive."""
    shutil.copytree(lua, folder)
    for path in Path(folder, "v1").glob("*.lua"):
        path.write_text(path.read_text(encoding="utf-8").replace(*FENCE), encoding="utf-8")
    return folder


def run(client, proxy, lua, command):
    """How many hits the client took for counted, how many for unknown, and how many there are."""
    client.flushall()
    for family in ("shop/hits", "shop/other", "shop-12345/product_views"):
        configure(client, lua, family, "buffered")
    with Forgetful(client, lua, "shop/hits"):
        done = subprocess.run([*command, proxy.socket, lua, str(HITS)], stdout=subprocess.PIPE, text=True, check=True)
    time.sleep(0.4)  # for what is late
    told = json.loads(done.stdout.splitlines()[-1])
    return told["counted"], told["unknown"], sum(pending(client, "shop/hits").values())


def main(server, lua, *command):
    client = redis.Redis(unix_socket_path=server)
    # phpredis before 6 waits for ever where a connection breaks within a reply
    with Proxy(server, within_replies="php" not in command[0]) as proxy, tempfile.TemporaryDirectory() as folder:
        result = run(client, proxy, lua, command)
        print(f"{result[0]} counted, {result[1]} unknown, {result[2]} there; lost: {proxy.lost}")
        unfenced = run(client, proxy, without_fence(lua, f"{folder}/lua"), command)[-1]
        print(f"without the fence: {unfenced} there")
    if result != (HITS, 0, HITS) or unfenced <= HITS:
        return 1
    print("passed")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
