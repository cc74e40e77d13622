"""The blocking client under gevent and eventlet, each in a process of its own."""

import importlib.util
import os
import unittest

from support import Case, new_id, pending, run_python

PROGRAM = """if True:
    import importlib, json, os, random, sys, threading, time, warnings
    warnings.simplefilter("ignore")
    path, namespace, name, counted, limited, forked, summed = sys.argv[1:]
    library = importlib.import_module(name)
    importlib.import_module("gevent.monkey").patch_all() if name == "gevent" else library.monkey_patch()
    import counterfoil, redis
    client = counterfoil.Counterfoil.connect("unix://" + path, namespace, timeout=0.5, retry_for=10, later_every=0.3)
    views, results, limits = client.buffered("views"), {}, 0

    def add(id, times=1):
        results.setdefault(id, []).extend(views.add(id) for _ in range(times))

    def add_until(seconds):
        global limits
        try:
            with library.Timeout(seconds):
                add(limited)
        except library.Timeout:
            limits += 1

    def start(function, *args):
        thread = threading.Thread(target=function, args=args)
        thread.start()
        return thread

    for thread in [start(add, counted, 20) for _ in range(64)]:
        thread.join()
    threads = [start(add_until, random.random() * 0.02) for _ in range(64)] + [start(add, limited) for _ in range(64)]
    for thread in threads:
        thread.join()

    for _ in range(64):
        library.spawn(views.later, summed)
    time.sleep(0.6)
    views.later(summed)
    time.sleep(0.6)
    senders = sum(thread.name == "counterfoil" for thread in threading.enumerate())

    redis.Redis(unix_socket_path=path).client_pause(300, all=False)
    views.later(summed)
    threads = [start(add, forked) for _ in range(8)]
    time.sleep(0.1)
    child = os.fork()
    if child == 0:  # it has a copy of each greenlet
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        time.sleep(1)
        os._exit(0)
    for thread in threads:
        thread.join()
    os.waitpid(child, 0)
    views.later(summed, 2)  # the exit sends it
    print(json.dumps([results, limits, senders]))"""


@unittest.skipUnless(os.environ.get("COUNTERFOIL_LONG"), "it takes long")
class Greenlets(Case):
    def test_greenlets_share_calls(self):
        for name in ("gevent", "eventlet"):
            if not importlib.util.find_spec(name):
                print(f"the test with {name} is skipped: it is not installed")
                continue
            counted, limited, forked, summed = ids = [new_id() for _ in range(4)]
            _, (results, limits, senders) = run_python(PROGRAM, name, *ids)
            self.assertEqual(sorted(results[counted]), list(range(1, 1281)))
            self.assertIn(pending("views", limited) - len(results[limited]), range(limits + 1))
            self.assertEqual((len(results[forked]), pending("views", forked)), (8, 8), name)
            self.assertEqual((senders, pending("views", summed)), (1, 68), name)


if __name__ == "__main__":
    unittest.main()
