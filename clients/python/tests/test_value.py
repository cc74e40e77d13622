"""Exact values by the daemon."""

import asyncio
import json
import os
import socket
import struct
import threading
import time
import unittest
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from counterfoil import Counterfoil, Misconfigured, NotCounted
from counterfoil.asyncio import Counterfoil as AsyncCounterfoil
from support import DAEMON, NAMESPACE, SOCKET, Case, connected, in_child, new_id

NOBODY = "http://127.0.0.1:1"


def views_by(daemon, retry_for=10, **options):
    client = Counterfoil.connect(f"unix://{SOCKET}", NAMESPACE, daemon=daemon, retry_for=retry_for, **options)
    return client.buffered("views")


class Stub:
    """A daemon that gives one reply to all requests: 7 for each id by default."""

    def __init__(self, case, status=200, headers=(), pause=0):
        stub = self
        self.connections, self.requests, self.lock = 0, [], threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self):
                with stub.lock:
                    stub.connections += 1
                super().setup()

            def do_POST(self):
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with stub.lock:
                    stub.requests.append((self.headers["Authorization"], request))
                time.sleep(pause)
                self.send_response(status)
                body = json.dumps({"family": request["family"], "values": [7] * len(request["ids"])}).encode()
                for header in (*headers, ("Content-Length", len(body))):
                    self.send_header(*map(str, header))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

            def do_GET(self):  # a probe
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

        self._handler, self._port = Handler, 0
        self.start()
        self._port = self._server.server_port
        self.url = f"http://127.0.0.1:{self._port}"
        case.addCleanup(self.stop)

    def start(self):
        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), self._handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self):
        self._server.shutdown()
        self._server.server_close()


class Values(Case):
    def test_what_waits_in_redis_is_a_part(self):
        ids = [new_id() for _ in range(2100)]
        for family in ("views", "wide"):
            counter = connected().buffered(family)
            counter.add_many([(id, at) for at, id in enumerate(ids)])
            self.assertEqual(counter.values(ids[::-1]), list(range(len(ids)))[::-1])
            self.assertEqual((counter.value(ids[5]), counter.value(new_id()), counter.values(iter([]))), (5, 0, []))

    def test_asyncio(self):
        async def counted():
            async with AsyncCounterfoil.connect(f"unix://{SOCKET}", NAMESPACE, daemon=[NOBODY, DAEMON]) as client:
                views, id = client.buffered("views"), new_id()
                await views.add(id, 2**62)
                return await asyncio.gather(views.value(id), views.values([id, new_id()]))

        self.assertEqual(asyncio.run(counted()), [2**62, [2**62, 0]])

    def test_connections_are_kept_and_not_shared_with_a_child(self):
        stub = Stub(self)
        views = views_by(stub.url + "/", token="secret")
        for _ in range(20):
            self.assertEqual(views.value("a"), 7)
        self.assertEqual((stub.connections, len(stub.requests)), (1, 20))
        self.assertEqual(stub.requests[0], ("Bearer secret", {"family": f"{NAMESPACE}/views", "ids": ["a"]}))
        child = in_child(lambda: views.value("a"))
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        views.value("a")
        self.assertEqual(stub.connections, 2)

    def test_threads_have_connections_of_their_own(self):
        stub = Stub(self, pause=0.01)
        views = views_by(stub.url)
        with ThreadPoolExecutor(8) as threads:
            found = list(threads.map(lambda _: views.values(["a", "b"]), range(80)))
        self.assertEqual(found, [[7, 7]] * 80)
        self.assertLessEqual(stub.connections, 8)

    def test_the_next_daemon(self):
        busy, stub = Stub(self, 503, [("Retry-After", 1)]), Stub(self)
        views = views_by([NOBODY, busy.url, stub.url])
        for _ in range(10):
            self.assertEqual(views.value("a"), 7)
        self.assertEqual((len(busy.requests), len(stub.requests)), (1, 10))
        self.assertTrue(self.assert_raises(NotCounted, "DAEMON", views_by([busy.url, NOBODY], 0.3).value, "a").temporary)

    def test_a_silent_daemon(self):
        silent, stub = socket.create_server(("127.0.0.1", 0)), Stub(self)
        self.addCleanup(silent.close)
        views, start = views_by([f"http://127.0.0.1:{silent.getsockname()[1]}", stub.url], retry_for=2), time.monotonic()
        self.assertEqual((views.value("a"), views.value("a")), (7, 7))
        self.assertLess(time.monotonic() - start, 1.5)

    def test_the_pause_that_a_busy_daemon_asks_for(self):
        busy = Stub(self, 503, [("Retry-After", 1)])
        self.assert_raises(NotCounted, "DAEMON", views_by(busy.url, retry_for=2).value, "a")
        self.assertIn(len(busy.requests), (2, 3, 4))

    def test_defaults(self):
        views, errors = views_by([NOBODY, NOBODY], 0.3), []

        def of_row(error):
            errors.append(error.reason)
            return 5

        self.assertEqual((views.value("a", 3), views.value("a", of_row), errors), (3, 5, ["DAEMON"]))
        self.assertEqual(views.values(["a", "b"], 3), [3, 3])
        self.assertEqual(views.values(["a", "b"], (3, 4)), [3, 4])
        self.assertEqual(views.values(["a", "b"], lambda error: [6, 7]), [6, 7])
        self.assertEqual(views.values([], 3), [])
        none = connected().buffered("none")
        self.assertEqual(none.values(["a", "b"], lambda error: errors.append(error.reason) or 4), [4, 4])
        self.assertEqual(errors, ["DAEMON", "UNCONFIGURED"])
        self.assert_raises(NotCounted, "BADID", views.value, "", 3)
        self.assertEqual(views_by(DAEMON).value(new_id(), 3), 0)
        daily = Counterfoil.connect("unix:///nowhere.sock", NAMESPACE, daemon=DAEMON, retry_for=0.2).visitors("daily")
        self.assertEqual(daily.value("a", "2026-11-25", 3), 3)
        self.assertEqual(daily.values([("a", "2026-11-25")], [4]), [4])

    def test_defaults_of_asyncio(self):
        async def shown():
            async with AsyncCounterfoil.connect(f"unix://{SOCKET}", NAMESPACE, daemon=NOBODY, retry_for=0.2) as client:
                views = client.buffered("views")
                return await views.value("a", 3), await views.value("a", of_row), await views.values(["a", "b"], lambda _: 7)

        async def of_row(error):
            return 5

        self.assertEqual(asyncio.run(shown()), (3, 5, [7, 7]))

    def test_an_outage_of_the_daemon(self):
        stub = Stub(self)
        views = views_by(stub.url, 0.3)
        stub.stop()
        self.assert_raises(NotCounted, "DAEMON", views.value, "a")
        start = time.monotonic()
        error = self.assert_raises(NotCounted, "DAEMON", views.value, "a")
        self.assertEqual([views.value("a", 3) for _ in range(10)], [3] * 10)
        self.assertLess(time.monotonic() - start, 0.2)
        self.assertIn("the daemon is unreachable: ", str(error))
        views.add(new_id())  # Redis is available
        stub.start()
        while views.value("a", 3) == 3:
            self.assertLess(time.monotonic() - start, 4)
            time.sleep(0.02)

    def test_a_busy_daemon_is_no_outage(self):
        views = views_by(Stub(self, 503).url, 0.3)
        self.assert_raises(NotCounted, "DAEMON", views.value, "a")
        self.assertEqual(views.client.session.outages, {})

    def test_a_silent_daemon_does_not_block_an_event_loop(self):
        silent = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(silent.close)

        async def shown():
            daemon = f"http://127.0.0.1:{silent.getsockname()[1]}"
            async with AsyncCounterfoil.connect(f"unix://{SOCKET}", NAMESPACE, daemon=daemon) as client:
                views, pauses = client.buffered("views"), [0.0]
                start = time.monotonic()
                reads = asyncio.gather(*(views.value("a", 3) for _ in range(100)))
                while not reads.done():
                    before = time.monotonic()
                    await asyncio.sleep(0.01)
                    pauses.append(time.monotonic() - before)
                return await reads, time.monotonic() - start, max(pauses)

        values, seconds, pause = asyncio.run(shown())
        self.assertEqual(values, [3] * 100)
        self.assertLess(seconds, 1.5)
        self.assertLess(pause, 0.45)

    def test_replies_that_do_not_pass(self):
        for status, reason in ((302, "DAEMON"), (401, "DAEMON"), (404, "DAEMON"), (409, "MISMATCH")):
            stub, other = Stub(self, status, [("Location", NOBODY)]), Stub(self)
            self.assert_raises(Misconfigured, reason, views_by([stub.url, other.url]).value, "a")
            self.assertEqual((len(stub.requests), len(other.requests)), (1, 0))
        self.assert_raises(Misconfigured, "NO DAEMON", views_by(None).value, "a")
        self.assert_raises(Misconfigured, "OPTION", views_by, "localhost:9292")
        self.assert_raises(Misconfigured, "DAEMON", views_by(f"{DAEMON}/elsewhere").value, "a")

    def test_a_family_that_no_daemon_has_configured(self):
        client = connected()
        for call in (client.buffered("none").value, client.cached("none").get, client.cached("none").value):
            error = self.assert_raises(NotCounted, "UNCONFIGURED", call, "a")
            self.assertIn(f"UNCONFIGURED: no daemon has configured {NAMESPACE}/none: declare it in ", str(error))
            self.assertTrue(error.temporary)

    def test_a_daemon_that_closes_connections(self):
        server = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(server.close)
        replies, accepted = [b'{"values":[7]}', b'{"values":[8]}'], []

        def serve():
            for body in replies:
                connection, _ = server.accept()
                accepted.append(connection)
                connection.recv(2000)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
                connection.close()  # while the client keeps it

        threading.Thread(target=serve, daemon=True).start()
        views = views_by(f"http://127.0.0.1:{server.getsockname()[1]}")
        self.assertEqual(views.value("a"), 7)
        time.sleep(0.05)
        self.assertEqual((views.value("a"), len(accepted)), (8, 2))

    def test_a_reply_that_breaks_off(self):
        server = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(server.close)

        def reset():
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                connection.recv(2000)
                connection.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{"values":[1')
                time.sleep(0.05)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                connection.close()

        threading.Thread(target=reset, daemon=True).start()
        views = views_by(f"http://127.0.0.1:{server.getsockname()[1]}", 0.3)
        self.assertTrue(self.assert_raises(NotCounted, "DAEMON", views.value, "a").temporary)


if __name__ == "__main__":
    unittest.main()
