#!/usr/bin/env python3
"""Runs lua/vectors against a Redis server, which must be a private one: every case empties it.

    vectors.py SOCKET LUA_DIR
"""
import json
import sys
from pathlib import Path

import redis


def expanded(items):
    """The array with its shorthands written out."""
    for item in items:
        if isinstance(item, dict) and "ids" in item:
            yield from (f"{item['ids']['prefix']}{i}" for i in range(1, item["ids"]["count"] + 1))
        elif isinstance(item, dict) and "times" in item:
            yield from item["of"] * item["times"]
        else:
            yield item


def raw(value):
    """As Redis takes and returns it: bytes, integers, arrays."""
    if isinstance(value, list):
        return [raw(item) for item in expanded(value)]
    if isinstance(value, dict):
        return bytes.fromhex(value["hex"])
    return value.encode() if isinstance(value, str) else value


def name(text):
    """A field or member, which stands in front of a colon: text, or hex: and digits."""
    return bytes.fromhex(text[4:]) if text.startswith("hex:") else text.encode()


def hash_of(fields):
    """The content of a hash, which may be given as a fill."""
    if isinstance(fields.get("fill"), dict):
        fill = fields["fill"]
        return {f"{fill['prefix']}{i}".encode(): fill["value"].encode() for i in range(1, fill["count"] + 1)}
    return {name(field): raw(value) for field, value in fields.items()}


def content_of(fields):
    """The content of a key afterwards: a hash, or {"zset": {...}} or {"set": [...]}."""
    kind, content = next(iter(fields.items()), ("", None))
    if kind == "zset" and isinstance(content, dict):
        return "zset", hash_of(content)
    if kind == "set" and isinstance(content, list):
        return "set", set(raw(content))
    return "hash", hash_of(fields)


class Run:
    def __init__(self, client, lua_dir):
        self.redis = client
        self.hashes = {path.stem: client.script_load(path.read_bytes()) for path in (lua_dir / "v1").glob("*.lua")}

    def contents(self):
        """Every key of the database."""
        read = {
            "hash": self.redis.hgetall,
            "zset": lambda key: {id: b"%d" % score for id, score in self.redis.zrange(key, 0, -1, withscores=True)},
            "set": self.redis.smembers,
            "string": self.redis.get,
            "list": lambda key: self.redis.lrange(key, 0, -1),
        }
        kinds = {key: self.redis.type(key).decode() for key in self.redis.keys()}
        return {key: (kind, read[kind](key)) for key, kind in kinds.items()}

    def send(self, script, keys, args):
        try:
            return self.redis.evalsha(self.hashes[script], len(keys), *keys, *args)
        except redis.ResponseError as error:
            return error

    def call(self, vectors, call):
        """What is wrong with the reply, or None."""
        script = call.get("script", vectors["script"])
        keys, args = raw(call.get("keys", vectors["keys"])), raw(call["args"])
        if "pages" in call:
            return self.pages(script, keys, args, call["pages"])
        expected, before = call["reply"], self.contents()
        got = self.send(script, keys, args)
        if isinstance(expected, dict):
            word, _, text = expected["error"].partition(" ")
            # the word comes first, unless it is Redis's own: 6.2 has "Error running script" in front of it
            if not isinstance(got, redis.ResponseError) or word not in str(got).split() or text not in str(got):
                return f"expected the error {expected['error']}, got {got}"
            return None if self.contents() == before else f"{got}, but keys were changed"
        return None if same(got, raw(expected)) else f"expected {raw(expected)}, got {got!r}"

    def pages(self, script, keys, args, pages):
        cursor, calls, found = pages["cursor"] - 1, 0, []
        while calls == 0 or args[cursor] != b"0":
            reply = self.send(script, keys, args)
            if not isinstance(reply, list) or reply[0] != b"OK" or calls > 100000:
                return f"page {calls + 1}: {reply!r}"
            args[cursor] = reply[1]
            found.append(reply[2])
            calls += 1
        flat = [item for page in found for item in page]
        got, expected = dict(zip(flat[::2], flat[1::2])), hash_of(pages["collected"])
        if calls <= pages["more_than"]:
            return f"expected more than {pages['more_than']} pages, got {calls}"
        return None if got == expected else f"expected {expected}, got {got} on {calls} pages"

    def set_up(self, vectors, steps):
        for step in steps:
            if isinstance(step, str):
                self.set_up(vectors, vectors["setups"][step])
            elif isinstance(step, dict):
                self.redis.hset(step["fill"]["key"], mapping=hash_of(step))
            else:
                self.redis.execute_command(*raw(step))

    def case(self, vectors, case):
        self.redis.flushdb()
        self.set_up(vectors, case.get("setup", []))
        expected = self.contents()
        for number, call in enumerate(case["calls"], 1):
            wrong = self.call(vectors, call)
            if wrong:
                return f"call {number}: {wrong}"
        for key, fields in case.get("after", {}).items():
            expected[key.encode()] = fields and content_of(fields)
        expected = {key: content for key, content in expected.items() if content}
        if "after" in case and self.contents() != expected:
            return f"afterwards: expected {expected}, got {self.contents()}"
        return None


def same(got, expected):
    """Equal, and of the same kind: 1 is neither "1" nor True."""
    if isinstance(expected, list):
        return isinstance(got, list) and len(got) == len(expected) and all(map(same, got, expected))
    return type(got) is type(expected) and got == expected


def main(socket, lua_dir):
    run = Run(redis.Redis(unix_socket_path=socket), Path(lua_dir))
    passed = failed = 0
    for path in sorted((Path(lua_dir) / "vectors").glob("*.json")):
        text = path.read_text(encoding="utf-8")
        vectors = json.loads(text.replace('"@', '"' + json.loads(text)["prefix"]))
        for case in vectors["cases"]:
            wrong = run.case(vectors, case)
            if wrong:
                failed += 1
                print(f"{case['id']}: {wrong}")
            else:
                passed += 1
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
