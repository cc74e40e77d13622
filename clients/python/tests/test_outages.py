"""Limits of calls, and outages: after the first failure nothing waits."""

import asyncio
import os
import threading
import time
import unittest
from contextlib import suppress
from unittest import mock

import redis

import counterfoil.asyncio
from counterfoil import Counterfoil, CounterfoilError, Misconfigured, NotCounted, OutcomeUnknown
from counterfoil._blocking import run
from counterfoil._channel import CALLS, REQUESTS
from counterfoil._outage import Outage
from support import DAEMON, NAMESPACE, SOCKET, Case, attempts_of, connected, in_child, new_id, pending, plain, silent_server


class Link:
    """Yields the socket of a Redis that can be stopped."""

    def __init__(self, case):
        self.path = f"/tmp/counterfoil-{new_id()}.sock"
        case.addCleanup(self.stop)

    def start(self):
        os.symlink(SOCKET, self.path)

    def stop(self):
        with suppress(FileNotFoundError):
            os.unlink(self.path)

    def connect(self, package=counterfoil, **options):
        return package.Counterfoil.connect(f"unix://{self.path}", NAMESPACE, daemon=DAEMON, **options)


def seconds_of(function, *args):
    start = time.monotonic()
    with suppress(CounterfoilError):
        function(*args)
    return time.monotonic() - start


class Limits(Case):
    def test_calls_of_a_silent_server(self):
        address = f"redis://{silent_server(self)}"
        for method, most in (("add", 1), ("later_and_close", 1.5), ("get", 0.5), ("value", 0.5)):
            client = Counterfoil.connect(address, NAMESPACE, daemon=f"http://{silent_server(self)}")
            if method == "later_and_close":
                client.retry_for = 30
                client.buffered("views").later("a")
                with self.assertLogs("counterfoil") as logs, mock.patch("counterfoil._blocking.END_SECONDS", most):
                    seconds = seconds_of(client.close)
                self.assertIn(f"{NAMESPACE}/views: +1 for 'a' was not counted, and is dropped: ", logs.output[-1])
            elif method == "get":
                seconds = seconds_of(client.series("hits").get, "a", "60s")
            else:
                seconds = seconds_of(getattr(client.buffered("views"), method), "a")
            self.assertLess(seconds, most + 0.3, method)
            self.assertGreater(seconds, most / 2, method)


    def test_a_read_does_not_wait_for_a_call_that_may_take_longer(self):
        hits = Counterfoil.connect(f"redis://{silent_server(self)}", NAMESPACE, retry_for=3).series("hits")
        thread = threading.Thread(target=seconds_of, args=(hits.add, "a"))
        thread.start()
        time.sleep(0.05)
        seconds_of(hits.get, "a", "60s")
        self.assertTrue(thread.is_alive())
        thread.join()


class Outages(Case):
    def assert_at_once(self, reason, function, *args):
        start = time.monotonic()
        error = self.assert_raises(NotCounted, reason, function, *args)
        self.assertLess(time.monotonic() - start, 0.2)
        self.assertTrue(error.temporary)
        return error

    def test_a_server_that_is_stopped(self):
        link, id = Link(self), new_id()
        client = link.connect()
        views = client.buffered("views")
        self.assert_raises(NotCounted, "UNREACHABLE", views.add, id)
        for call in (lambda: views.add(id), lambda: client.activity("readers").now(id)):
            self.assertIn("UNREACHABLE: Redis is unreachable: ", str(self.assert_at_once("UNREACHABLE", call)))
        [outage] = client.session.outages.values()
        outage._since -= 7
        self.assertIn("Redis has been unreachable for 7 s: ", str(self.assert_at_once("UNREACHABLE", views.add, id)))
        link.start()
        self.assertEqual(self.assert_recovers(views.add, id), 1)
        self.assertEqual(client.session.outages, {})

    def test_a_server_that_is_silent(self):
        client, id = connected(), new_id()
        views = client.buffered("views")
        views.add(id)
        plain().client_pause(1500, all=False)
        start, errors = time.monotonic(), []

        def add():
            try:
                views.add(id)
            except CounterfoilError as error:
                errors.append((type(error), time.monotonic() - start))

        threads = [threading.Thread(target=add) for _ in range(5)]
        for thread in threads:
            thread.start()
            time.sleep(0.05)
        for thread in threads:
            thread.join()
        self.assert_at_once("UNREACHABLE", views.add, id)
        self.assertEqual([kind for kind, _ in errors].count(OutcomeUnknown), 1)
        self.assertLess(max(seconds for _, seconds in errors), 1.4)  # calls in the queue end with the first one
        self.assertEqual(self.assert_recovers(views.add, id) - pending("views", id), 0)

    def test_a_refusal_of_a_call_is_no_outage(self):
        client, id = connected(retry_for=0.5), new_id()
        views = client.buffered("views")
        views.add(id)
        plain().config_set("maxmemory", 1)
        try:
            self.assert_raises(NotCounted, "OOM", views.add, id)
        finally:
            plain().config_set("maxmemory", 0)
        self.assertEqual((client.session.outages, views.add(id)), ({}, 2))

    def test_a_partition_of_a_cluster(self):
        client = connected()
        client.is_cluster = True
        channel = client.buffered("views").channel

        def read(home):
            keys = channel.family.keys(0, *CALLS, *REQUESTS)
            return run(channel.read("family_epoch", home, keys, ["", "", "", ""], client.deadline()))

        error = NotCounted("CLUSTERDOWN", "Hash slot not served")
        client.session.begin_outage((channel.family.name, 2), Outage(error, mock.AsyncMock(return_value=False), "Redis"))
        self.assertIn("Redis is CLUSTERDOWN: ", str(self.assert_at_once("CLUSTERDOWN", read, 2)))
        self.assertEqual(read(1)[0], b"OK")
        unreachable = redis.exceptions.RedisClusterException("Redis Cluster cannot be connected")
        client.session.execute = mock.AsyncMock(side_effect=unreachable)
        self.assertRaises(NotCounted, read, 1)
        self.assert_at_once("UNREACHABLE", read, 3)

    def test_a_child_has_a_probe_of_its_own(self):
        link, id = Link(self), new_id()
        views = link.connect(retry_for=0.3).buffered("views")
        self.assert_raises(NotCounted, "UNREACHABLE", views.add, id)

        def child():
            self.assertRaises(NotCounted, views.add, id)
            self.assert_at_once("UNREACHABLE", views.add, id)
            link.start()
            self.assert_recovers(views.add, id)

        os.waitpid(in_child(child), 0)
        self.assertEqual(pending("views", id), 1)

    def test_sums_wait_at_no_cost(self):
        link, id = Link(self), new_id()
        client = link.connect()
        views = client.buffered("views")
        with self.assertLogs("counterfoil") as logs:
            self.assertRaises(NotCounted, views.add, id)
            times = [seconds_of(views.later, id) for _ in range(100) if not time.sleep(0.01)]
        self.assertLess(sorted(times)[-3], 0.01)
        self.assertEqual(len(logs.output), 1)
        self.assertIn("views: sums wait: UNREACHABLE: Redis is unreachable: ", logs.output[0])
        link.start()
        self.assert_pending("views", id, 100)

    def test_a_close_in_an_outage_tries_again(self):
        link, id = Link(self), new_id()
        client = link.connect(retry_for=0.3)
        views = client.buffered("views")
        self.assertRaises(NotCounted, views.add, id)
        views.later(id)
        attempts = attempts_of(client.session)
        thread = threading.Thread(target=client.close)
        with mock.patch("counterfoil._blocking.END_SECONDS", 60):
            thread.start()
            while len(attempts) < 3:  # each attempt is a probe
                time.sleep(0.01)
        link.start()
        thread.join()
        self.assertEqual(pending("views", id), 1)

    def test_a_close_in_an_outage_reports_what_it_drops(self):
        client, dropped = Link(self).connect(retry_for=0.3), []
        views = client.buffered("views", on_error=lambda *args: dropped.append(args[1:]))
        self.assertRaises(NotCounted, views.add, "a")
        for _ in range(3):
            views.later("a")
        with self.assertLogs("counterfoil") as logs, mock.patch("counterfoil._blocking.END_SECONDS", 0.1):
            self.assert_raises(NotCounted, "UNREACHABLE", client.close)
        self.assertIn(f"{NAMESPACE}/views: +3 for 'a' was not counted, and is dropped: UNREACHABLE: ", logs.output[-1])
        [(id, n, error)] = dropped
        self.assertEqual((id, n, type(error)), ("a", 3, NotCounted))

    def test_a_close_in_an_outage_without_sums_makes_no_attempt(self):
        client = Link(self).connect(retry_for=0.3)
        self.assertRaises(NotCounted, client.buffered("views").add, "a")
        attempts = attempts_of(client.session)
        client.close()
        self.assertEqual(attempts, [])

    def test_a_close_does_not_wait_for_a_send_that_may_take_longer(self):
        link, id = Link(self), new_id()
        link.start()
        client = link.connect(retry_for=30)
        views = client.buffered("views")
        views.add(id)
        link.stop()
        client.session.redis.connection_pool.disconnect()
        views.later(id)
        time.sleep(0.3)  # meanwhile the thread sends it
        with self.assertLogs("counterfoil"), mock.patch("counterfoil._blocking.END_SECONDS", 0.5):
            self.assertLess(seconds_of(client.close), 3)

    def test_asyncio(self):
        link, id = Link(self), new_id()

        async def count():
            tasks = asyncio.all_tasks()
            client = link.connect(counterfoil.asyncio)
            views = client.buffered("views")
            results = await asyncio.gather(*(views.add(id) for _ in range(20)), return_exceptions=True)
            self.assertEqual({error.reason for error in results}, {"UNREACHABLE"})
            start = time.monotonic()
            with self.assertRaises(NotCounted) as raised:
                await views.add(id)
            self.assertIn("Redis is unreachable", str(raised.exception))
            self.assertLess(time.monotonic() - start, 0.2)
            views.later(id)
            link.start()
            while pending("views", id) == 0:
                await asyncio.sleep(0.05)
            self.assertEqual(await views.add(id), 2)
            link.stop()
            client.session.redis.connection_pool.reset()
            with suppress(NotCounted):
                await views.add(id)
            views.later(id)
            with self.assertLogs("counterfoil"):
                with self.assertRaises(NotCounted):
                    await client.close()
            self.assertEqual(asyncio.all_tasks(), tasks)

        asyncio.run(asyncio.wait_for(count(), 10))


class Families(Case):
    def test_a_family_that_the_daemon_refuses(self):
        client = connected()
        views = client.buffered("refused", on_error=lambda *args: dropped.append(args))
        client.session.execute = mock.AsyncMock(return_value=[b"UNCONFIGURED", b"table wp_views: no column n"])
        start, dropped = time.monotonic(), []
        error = self.assert_raises(Misconfigured, "UNCONFIGURED", views.add, "a")
        self.assertEqual(str(error), f"UNCONFIGURED: the daemon refuses {NAMESPACE}/refused: table wp_views: no column n")
        self.assertLess(time.monotonic() - start, 0.5)
        with self.assertLogs("counterfoil"):
            views.later("a")
            self.assert_raises(Misconfigured, "UNCONFIGURED", views.flush)
        self.assertEqual((views.channel.sums.waiting, dropped), ({("a",): 1}, []))
        views.channel.sums.waiting, views.channel.sums.temporary = {}, None

    def test_a_family_that_no_daemon_has_configured(self):
        client, name = connected(), f"family-{new_id()}"
        views, calls = client.buffered(name), (lambda: views.add("a"), lambda: views.request_epoch("r", "a"))
        plain().delete("cf1:wanted")
        attempts = attempts_of(client.session)
        first = self.assert_raises(NotCounted, "UNCONFIGURED", views.add, "a")
        self.assertLess(len(attempts), 14)  # one each 200 ms, and two more that load scripts
        number = len(attempts)
        for call in calls * 10:
            error = self.assert_raises(NotCounted, "UNCONFIGURED", call)
            self.assertEqual((str(error), error.temporary), (str(first), True))
        self.assertLess(len(attempts) - number, 20)  # only attempts of a probe
        source = plain().hgetall(f"cf1:{{{NAMESPACE}/views/0}}:calls")
        calls_key = f"cf1:{{{NAMESPACE}/{name}/0}}:calls"
        self.addCleanup(plain().delete, calls_key)
        plain().hset(calls_key, mapping={field: value for field, value in source.items() if field.startswith(b"=")})
        self.assertEqual(len(self.assert_recovers(views.request_epoch, "r", "a")), 16)

    def test_a_probe_announces_the_family(self):
        client, name = connected(), f"family-{new_id()}"
        self.assert_raises(NotCounted, "UNCONFIGURED", client.buffered(name).add, "a")
        [outage] = client.session.outages.values()
        while run(client.session.execute(("SREM", "cf1:wanted", f"{NAMESPACE}/{name}"), 0)) != 1:
            self.assertTrue(outage.lasts)
            time.sleep(0.001)

    def test_messages(self):
        error = self.assert_raises(NotCounted, "UNCONFIGURED", connected().buffered("nobody").add, "a")
        advice = "declare it in counterfoil.toml, and run the daemon"
        self.assertEqual(str(error), f"UNCONFIGURED: no daemon has configured {NAMESPACE}/nobody: {advice}")
        error = self.assert_raises(Misconfigured, "MISMATCH", connected().buffered("votes").add, "a")
        self.assertEqual(str(error), f"MISMATCH: {NAMESPACE}/votes is cached, not buffered")


class Later(Case):
    def test_all_kinds(self):
        client, id, dropped = connected(later_every=30), new_id(), []
        hits = client.series("hits", on_error=lambda *args: dropped.append(args[:3]))
        readers, daily = client.activity("readers"), client.visitors("daily")
        hour_ago = time.time() - 3600
        for _ in range(3):
            hits.later(id, 2)
            hits.later(id, at=hour_ago)
            readers.later(id, "a")
            daily.later(id, "2026-11-25", "a")
        readers.later(id, "b")
        daily.later(id, "2026-11-25", b"\xff")
        for family in (hits, readers, daily):
            family.flush()
        window = [count for _, count in hits.get(id, "60s")]
        self.assertEqual((sum(window), sum(window[-3:])), (9, 6))
        self.assertEqual((readers.now(id), daily.value(id, "2026-11-25")), ((4, 2), 2))
        hits.later(id, 5, at=1)
        with self.assertLogs("counterfoil"):
            self.assert_raises(NotCounted, "BADTIME", hits.flush)
        self.assertEqual(dropped, [(f"{NAMESPACE}/hits", id, 5)])
        self.assert_raises(NotCounted, "BADID", daily.later, id, "today", "a")
        self.assert_raises(NotCounted, "BADARG", hits.later, id, 0)
        self.assert_raises(NotCounted, "BADID", readers.later, "", "a")
        client.close()

    def test_asyncio(self):
        async def count():
            async with counterfoil.asyncio.Counterfoil.connect(f"unix://{SOCKET}", NAMESPACE) as client:
                hits, readers, daily = client.series("hits"), client.activity("readers"), client.visitors("daily")
                for _ in range(150):
                    hits.later(id)
                    readers.later(id, "a")
                    daily.later(id, "2026-11-25", "a")
                for family in (hits, readers, daily):
                    await family.flush()
                return sum(n for _, n in await hits.get(id, "60s")), await readers.now(id)

        id = new_id()
        self.assertEqual(asyncio.run(count()), (150, (150, 1)))
        self.assertEqual(pending("daily", f"{id}/2026-11-25"), 1)

    def test_a_scope_and_day_of_a_family_that_is_not_known(self):
        dropped = []
        client = Counterfoil.connect("unix:///nowhere.sock", NAMESPACE, retry_for=0.1, later_every=30)
        client.visitors("daily", on_error=lambda *args: dropped.append(args[1:3])).later("a", "2026-11-25", "v")
        with self.assertLogs("counterfoil"):
            self.assertRaises(NotCounted, client.close)
        self.assertEqual(dropped, [("a/2026-11-25", 1)])


if __name__ == "__main__":
    unittest.main()
