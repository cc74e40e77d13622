"""The blocking client: processes, threads, redis-py's options, sums."""

import asyncio
import dis
import enum
import gc
import os
import pickle
import queue
import signal
import socket
import sys
import threading
import time
import unittest
import warnings
import zlib
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from unittest import mock

import counterfoil.asyncio
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from counterfoil import Counterfoil, CounterfoilError, Misconfigured, NotCounted, OutcomeUnknown
from counterfoil._blocking import run
from counterfoil._channel import Entry
from counterfoil._redis import Command
from support import (
    NAMESPACE,
    SOCKET,
    Case,
    Stop,
    attempts_of,
    calls_of,
    connected,
    in_child,
    new_id,
    pending,
    plain,
    plain_asyncio,
    run_python,
    silent_server,
)


def in_threads(count, function):
    threads = [threading.Thread(target=function) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def interrupt_at(point, function, *args):
    """Raises `Stop` at one of the points where Python calls the handler of a signal, while it runs code of the package. Returns
    whether there are so many."""
    points = [0]

    def trace(frame, event, _):
        if "counterfoil/_" not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes = True
        if event == "call" or event == "opcode" and frame.f_lasti in checks(frame.f_code):
            points[0] += 1
            if points[0] == point:
                raise Stop
        return trace

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # about coroutines that are not awaited
        sys.settrace(trace)
        try:
            function(*args)
        except Stop:
            pass
        finally:
            sys.settrace(None)
    return points[0] >= point


def checks(code, known={}):
    """Returns the offsets behind each call, and at each jump back."""
    if code not in known:
        words = list(dis.get_instructions(code))
        known[code] = {next.offset for one, next in zip(words, words[1:]) if one.opname.startswith("CALL")}
        known[code] |= {one.offset for one in words if one.opname.startswith("JUMP") and "BACKWARD" in one.opname}
    return known[code]


class Processes(Case):
    def test_forks_before_and_after_the_first_call(self):
        for client in (Counterfoil(redis.Redis(unix_socket_path=SOCKET, socket_timeout=2), NAMESPACE), connected()):
            views, id = client.buffered("views"), new_id()
            before = [in_child(lambda: [views.add(id) for _ in range(20)]) for _ in range(2)]
            for _ in range(20):
                views.add(id)
            after = [in_child(lambda: [views.add(id) for _ in range(20)]) for _ in range(2)]
            for _ in range(20):
                views.add(id)
            for child in before + after:
                os.waitpid(child, 0)
            self.assertEqual(pending("views", id), 120)

    def test_a_grandchild_counts(self):
        views, id = connected().buffered("views"), new_id()
        views.add(id)
        os.waitpid(in_child(lambda: [views.add(id), os.waitpid(in_child(lambda: views.add(id)), 0)]), 0)
        self.assertEqual(pending("views", id), 3)

    def test_sums_belong_to_the_parent(self):
        views, id, other = connected(later_every=30).buffered("views"), new_id(), new_id()
        views.later(id)

        def child():
            views.later(other)
            views.flush()

        os.waitpid(in_child(child), 0)
        self.assertEqual((pending("views", id), pending("views", other)), (0, 1))
        views.flush()
        self.assertEqual(pending("views", id), 1)

    def test_an_exit_sends_sums_and_a_kill_does_not(self):
        program = """if True:
            import os, sys, counterfoil
            client = counterfoil.Counterfoil.connect("unix://" + sys.argv[1], sys.argv[2], later_every=60)
            client.buffered("views").later(sys.argv[3], 3)
            if sys.argv[4] == "kill": os._exit(1)"""
        id = new_id()
        run_python(program, id, "exit")
        self.assertEqual(pending("views", id), 3)
        run_python(program, id, "kill")
        self.assertEqual(pending("views", id), 3)

    def test_the_exit_sends_what_a_handler_of_the_exit_takes(self):
        program = """if True:
            import atexit, sys, counterfoil
            client = counterfoil.Counterfoil.connect("unix://" + sys.argv[1], sys.argv[2], later_every=60)
            atexit.register(client.buffered("views").later, sys.argv[3], 3)"""
        id = new_id()
        run_python(program, id)
        self.assertEqual(pending("views", id), 3)

    def test_a_fork_while_another_client_connects(self):
        cluster = Counterfoil.connect([silent_server(self)], NAMESPACE, timeout=1, retry_for=0.1)
        client, id = connected(), new_id()
        thread = threading.Thread(target=lambda: self.assertRaises(CounterfoilError, cluster.buffered("views").add, id))
        thread.start()
        time.sleep(0.2)

        def child():
            signal.alarm(5)
            client.buffered("views").add(id)

        os.waitpid(in_child(child), 0)
        thread.join()
        self.assertEqual(pending("views", id), 1)

    def test_a_request_counts_once_in_all_processes(self):
        views, id = connected().buffered("views"), new_id()
        epoch = views.request_epoch("order/1", id)
        self.assertTrue(views.add_once("order/1", id, 2, epoch=epoch))
        os.waitpid(in_child(lambda: views.add_once("order/1", id, 2, epoch=epoch)), 0)
        self.assertFalse(views.add_once("order/1", id, 2, epoch=epoch))
        self.assertEqual(pending("views", id), 2)
        self.assert_raises(OutcomeUnknown, "EXPIRED", views.add_once, "order/2", id, 2, epoch="0123456789abcdef")

    def test_a_request_has_the_epoch_of_redis(self):
        one, other = connected().buffered("views"), connected().buffered("views")
        for views in (one, other):
            views.request_epoch("r", "a")
        plain().hset(f"cf1:{{{NAMESPACE}/views/0}}:requests", "=began_at", 1)  # the next to ask begins a new generation
        epoch = connected().buffered("views").request_epoch("r", "a")
        self.assertEqual(one.request_epoch("r", "a"), epoch)
        self.assertTrue(other.add_once("r", new_id(), epoch=epoch))

    def test_a_request_that_redis_may_have_forgotten(self):
        views, id = connected().buffered("views"), new_id()
        self.assertTrue(views.add_once("r", id))
        fields = "=now", "=before", "=began_at"
        plain().hdel(f"cf1:{{{NAMESPACE}/views/0}}:requests", *fields)  # as a reset leaves it
        self.assert_raises(OutcomeUnknown, "EXPIRED", views.add_once, "another", id)
        self.assertTrue(views.add_once("another", id))  # in the new generation

    def test_requests_of_a_cached_counter(self):
        votes, id = connected().cached("votes", read_row=lambda id: 5), new_id()
        epoch = votes.request_epoch("order/1", id)
        self.assertEqual(votes.incr_once("order/1", id, 2, epoch=epoch), 7)
        self.assertEqual(votes.incr(id), 8)
        self.assertEqual(votes.incr_once("order/1", id, 2), 7)

    def test_a_request_of_another_number_of_partitions(self):
        views = connected().buffered("views")
        views.request_epoch("r", "a")
        views.channel._last = views.channel._last._replace(partitions=8)  # then another thread asks Redis
        self.assert_raises(Misconfigured, "MISMATCH", views.add_once, "r", new_id())


class Threads(Case):
    def test_threads_share_calls_and_one_name(self):
        views, id = connected().buffered("views"), new_id()
        views.add(id)
        before, results = calls_of("views"), []
        in_threads(32, lambda: results.extend(views.add(id) for _ in range(20)))
        made = {name: n - before.get(name, 0) for name, n in calls_of("views").items() if n != before.get(name)}
        self.assertEqual(sorted(results), list(range(2, 642)))
        self.assertEqual(len(made), 1)
        self.assertLess(sum(made.values()), 400)

    def test_a_call_counts_in_all_partitions(self):
        client, id = connected(), new_id()
        for family, add_many in (("views", client.buffered("views").add_many), ("wide", client.buffered("wide").add_many)):
            add_many([(id, 1)])
            before = sum(calls_of(family).values())
            self.assertEqual(len(add_many([(f"{id}/{number}", 1) for number in range(100)])), 100)
            self.assertLessEqual(sum(calls_of(family).values()) - before, 1)

    def test_threads_that_miss_a_counter_share_one_read(self):
        reads = []

        def read_row(id):
            reads.append(id)
            time.sleep(0.5)
            return 100

        votes, id = connected().cached("votes", read_row=read_row), new_id()
        in_threads(16, lambda: votes.incr(id))
        self.assertEqual((reads, votes.get(id)), ([id], 116))

    def test_an_interrupted_call_is_repeated_once(self):
        client, id = plain(), new_id()
        views = Counterfoil(client, NAMESPACE).buffered("views")
        views.add(id)
        execute = client.execute_command

        for retry_for, kind in ((10, KeyboardInterrupt), (0.05, KeyboardInterrupt), (10, Stop), (0.05, Stop)):

            def interrupted(*words):
                execute(*words)
                raise kind

            views.client.retry_for, client.execute_command = retry_for, interrupted
            self.assertRaises(kind, views.add, id)
            views.client.retry_for, client.execute_command = 10, execute
            before = pending("views", id)
            self.assertEqual(views.add(id), before + 1)

    def test_an_interrupt_at_any_point_of_a_call(self):
        client, id, other, point = connected(), new_id(), new_id(), 1
        views = client.buffered("views")
        views.add(id)
        channel = views.channel
        while True:
            entry = channel.enter(channel._last, (other, 1), client.deadline())
            entry.queue.waiting.append(entry)  # as another thread does
            if not interrupt_at(point, views.add, id):
                break
            thread = threading.Thread(target=views.add, args=(id,), daemon=True)
            thread.start()
            thread.join(5)
            self.assertFalse(thread.is_alive(), point)
            self.assertEqual((entry.settled, pending("views", other)), (True, point))
            point += 1
        self.assertIn(pending("views", id), range(point, 2 * point + 1))

    def test_the_call_of_another_batch_is_not_sent(self):
        views, id, other = connected().buffered("views"), new_id(), new_id()
        views.add(id)
        [queue] = views.channel._queues.values()
        views.channel.session.execute = interrupted = mock.AsyncMock(side_effect=Stop)
        self.assertRaises(Stop, views.add, id)
        del views.channel.session.execute
        views.add(id)
        queue.call = interrupted.call_args.args[0]  # Python 3.9 may call the handler of a signal between any two assignments
        views.add(other)
        self.assertEqual((pending("views", id), pending("views", other)), (3, 1))

    def test_a_handler_of_a_signal_cannot_wait_for_its_own_thread(self):
        for later_every in (30, 0.01):  # with the latter the thread that sends sums waits for this one
            client, id = connected(later_every=later_every), new_id()
            views = client.buffered("views")
            views.add(id)
            signal.signal(signal.SIGALRM, lambda *_: client.close())
            plain().client_pause(2000, all=False)
            views.later(id)
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            self.assertRaises(RuntimeError, views.add, id)
            plain().client_unpause()
            client.close()
            self.assertIn(pending("views", id), (2, 3))

    def test_a_failed_read_of_a_row_counts_nothing(self):
        votes = connected().cached("votes", read_row=lambda id: 1 // 0)
        error = self.assert_raises(NotCounted, "ROW", votes.incr, new_id())
        self.assertIsInstance(error.__cause__, ZeroDivisionError)

    def test_bounds(self):
        votes, id = connected().cached("votes", read_row=lambda id: 7).incr, new_id()
        self.assertEqual(votes(id, 3), 10)
        error = self.assert_raises(NotCounted, "RANGE", votes, id, -11)
        self.assertEqual((error.value, str(error)), (10, "RANGE: the change would leave the bounds, the value is 10"))


class Library(Case):
    def test_clients_that_do_not_fit(self):
        wrong = redis.Redis(unix_socket_path=SOCKET, decode_responses=True)
        self.assert_raises(Misconfigured, "DECODED", Counterfoil, wrong, NAMESPACE)
        wrong = Counterfoil.connect(f"unix://{SOCKET}?decode_responses=True", NAMESPACE).buffered("views")
        self.assert_raises(Misconfigured, "DECODED", wrong.add, "a")
        for wrong in (plain().pipeline(), plain_asyncio(), "redis://localhost", None):
            self.assert_raises(Misconfigured, "CLIENT", Counterfoil, wrong, NAMESPACE)
        views = Counterfoil.connect("http://localhost", NAMESPACE).buffered("views")
        self.assert_raises(Misconfigured, "ADDRESS", views.add, "a")

    def test_a_prefix_of_keys(self):
        class Prefixed(redis.Redis):
            def execute_command(self, *words, **options):
                keys = slice(3, 3 + words[2])
                return super().execute_command(*words[:3], *(b"app:" + key for key in words[keys]), *words[keys.stop :])

        views = Counterfoil(Prefixed(unix_socket_path=SOCKET), NAMESPACE).buffered("views")
        self.assert_raises(Misconfigured, "BADKEY", views.add, new_id())

    def test_retries_of_the_library(self):
        for options in ({}, {"retry": Retry(NoBackoff(), 3)}, {"retry": Retry(NoBackoff(), 0), "retry_on_timeout": True}):
            client = redis.Redis(unix_socket_path=SOCKET, socket_timeout=2, **options)
            views, id = Counterfoil(client, NAMESPACE).buffered("views"), new_id()
            views.add(id)
            client.connection_pool.disconnect()
            self.assertEqual(views.add(id, 2), 3)

    def test_replies_of_both_protocols(self):
        for protocol in (2, 3):
            client = redis.Redis(unix_socket_path=SOCKET, protocol=protocol)
            self.assertEqual(Counterfoil(client, NAMESPACE).buffered("views").add(new_id(), 2**60), 2**60)

    def test_a_wrong_password(self):
        views = Counterfoil.connect(f"unix://nobody:wrong@{SOCKET}", NAMESPACE).buffered("views")
        self.assert_raises(Misconfigured, "NOAUTH", views.add, new_id())
        client = redis.Redis(unix_socket_path=SOCKET, username="nobody", password="wrong")
        self.assert_raises(Misconfigured, "NOAUTH", Counterfoil(client, NAMESPACE).buffered("views").add, new_id())

    def test_a_user_that_may_send_nothing(self):
        plain().execute_command("ACL", "SETUSER", "nothing", "on", ">right", "~*", "+ping")
        self.addCleanup(plain().execute_command, "ACL", "DELUSER", "nothing")
        views = Counterfoil.connect(f"unix://nothing:right@{SOCKET}", NAMESPACE).buffered("views")
        self.assert_raises(Misconfigured, "NOPERM", views.add, new_id())
        views.later(new_id())  # this hit is dropped
        self.assert_raises(Misconfigured, "NOPERM", views.flush)
        views.flush()

    def test_a_pool_without_a_free_connection(self):
        pool = redis.ConnectionPool(connection_class=redis.UnixDomainSocketConnection, path=SOCKET, max_connections=1)
        client = redis.Redis(connection_pool=pool)
        views = Counterfoil(client, NAMESPACE, retry_for=0.2).buffered("views")
        with client.client():
            with self.assertRaises(NotCounted) as raised:
                views.add(new_id())
            self.assertTrue(raised.exception.temporary)
        views.client.session.outages.clear()
        views.add(new_id())
        with client.client():
            self.assert_raises(NotCounted, "UNREACHABLE", views.add, new_id())

    def test_a_blocking_pool_and_that_of_a_cluster(self):
        for is_cluster, kind in ((False, NotCounted), (True, OutcomeUnknown)):  # RedisCluster has sent the call before
            for error in (redis.ConnectionError("No connection available."), redis.exceptions.MaxConnectionsError()):
                client = Counterfoil(plain(), NAMESPACE, retry_for=0.3)
                client.is_cluster, small = is_cluster, client.buffered("small")
                client.run(small.channel.known(client.deadline()))

                def full(*words, is_sent=is_cluster, error=error):
                    if is_sent:
                        redis.Connection().pack_command(*words)
                    raise error

                client.redis.execute_command = full
                with self.assertRaises(kind):
                    small.add(new_id())

    def test_a_server_without_a_connection_to_spare(self):
        for client in (connected(retry_for=0.4), Counterfoil(plain(), NAMESPACE, retry_for=0.4)):
            views, id = client.buffered("views"), new_id()
            views.add(id)
            client.session._redis = mock.Mock(**{"execute_command.side_effect": redis.ConnectionError("max number of clients reached")})
            self.assertTrue(self.assert_raises(NotCounted, "UNREACHABLE", views.add, id).temporary)

    def test_no_server(self):
        views = Counterfoil.connect("unix:///nowhere.sock", NAMESPACE, retry_for=0.2).buffered("views")
        error = self.assert_raises(NotCounted, "UNREACHABLE", views.add, "a")
        self.assertIsInstance(error.__cause__, redis.ConnectionError)


    def test_a_cluster_that_cannot_be_reached_after_a_lost_reply(self):
        client, id = connected(retry_for=0.4), new_id()
        views = client.buffered("views")
        views.add(id)

        class Lost:
            def execute_command(self, *words):
                try:
                    plain().execute_command(*words)
                    raise redis.TimeoutError("Timeout reading from socket")
                except redis.TimeoutError:  # RedisCluster asks other nodes before it raises the error
                    message = "Redis Cluster cannot be connected: Error 111 connecting to localhost:1"
                    raise redis.RedisClusterException(message) from redis.ConnectionError(message)

        client.session._redis = Lost()
        self.assert_raises(OutcomeUnknown, "no reply", views.add, id)
        self.assertEqual(pending("views", id), 2)

    def test_a_refusal_tells_nothing_about_what_the_library_sent_before(self):
        refusals = redis.exceptions.OutOfMemoryError(), redis.exceptions.BusyLoadingError(), redis.ResponseError("MISCONF Redis")
        for error in (*refusals, redis.ResponseError("BUSY Redis is busy"), redis.AuthenticationError("Authentication required.")):
            for is_repeat in (True, False):
                client, id = plain(), new_id()
                views = Counterfoil(client, NAMESPACE, retry_for=0.3).buffered("views")
                views.add(id)
                execute = client.execute_command

                def refused(name, *words):
                    if is_repeat:
                        execute(name, *words)  # its reply is lost, and redis-py repeats the call
                    redis.Connection().pack_command(name, *words)
                    raise error

                client.execute_command = refused
                with self.assertRaises(CounterfoilError) as raised:
                    views.add(id)
                self.assertEqual(isinstance(raised.exception, OutcomeUnknown), is_repeat, error)

    def test_a_wrapper_hides_the_sends_of_the_library(self):
        for error in (redis.exceptions.BusyLoadingError(), redis.ConnectionError("closed")):
            client, id = plain(), new_id()
            execute = client.execute_command
            client.execute_command = lambda name, *words: execute(f"{name}", *words)
            views = Counterfoil(client, NAMESPACE, retry_for=0.3).buffered("views")
            views.add(id)
            client.execute_command = mock.Mock(side_effect=error)
            with self.assertRaises(OutcomeUnknown):
                views.add(id)

    def test_each_send_of_the_library_is_counted(self):
        server = socket.socket()
        self.addCleanup(server.close)
        server.bind(("127.0.0.1", 0))
        server.listen(100)
        received = []

        def serve():
            with suppress(OSError):
                while True:
                    with server.accept()[0] as connection:
                        received.append(connection.recv(1000))

        threading.Thread(target=serve, daemon=True).start()
        options = {"port": server.getsockname()[1], "protocol": 2, "lib_name": None, "lib_version": None}
        for retries in range(3):
            client, name = redis.Redis(retry=Retry(NoBackoff(), retries), **options), Command("EVALSHA")
            received.clear()
            self.assertRaises(redis.ConnectionError, client.execute_command, name, "script", 0)
            self.assertEqual((name.sends, len(received)), (retries + 1, retries + 1))


class Tls(Case):
    @unittest.skipUnless("COUNTERFOIL_TEST_TLS" in os.environ, "there is no server with TLS")
    def test_a_server_with_a_certificate_of_its_own(self):
        address, authority = os.environ["COUNTERFOIL_TEST_TLS"], os.environ["COUNTERFOIL_TEST_CA"]
        for Client, call in ((Counterfoil, lambda coroutine: coroutine), (counterfoil.asyncio.Counterfoil, asyncio.run)):

            def reason(**options):
                views = Client.connect(address, NAMESPACE, retry_for=2, **options).buffered("views")
                with self.assertRaises(NotCounted) as raised:
                    call(views.add("a")) if Client is Counterfoil else call(self.awaited(views))
                return str(raised.exception)

            self.assertIn("tls_ca", reason())
            for options in ({"tls_ca": authority}, {"tls_verify": False}):
                self.assertIn("UNCONFIGURED", reason(**options))
        self.assert_raises(Misconfigured, "OPTION", Counterfoil.connect("redis://localhost", "a", tls_ca="b").buffered("a").add, "c")

    @staticmethod
    async def awaited(views):
        return await views.add("a")


class Errors(Case):
    def test_families(self):
        client = connected()
        error = self.assert_raises(NotCounted, "UNCONFIGURED", client.buffered("nobody").add, "a")
        self.assertIn("counterfoil.toml", str(error))
        self.assertTrue(error.temporary)
        self.assert_raises(Misconfigured, "MISMATCH", client.buffered("votes").add, "a")
        self.assert_raises(Misconfigured, "BADKEY", client.buffered("Views").add, "a")
        self.assert_raises(Misconfigured, "OPTION", connected, retry_for=31)
        self.assert_raises(Misconfigured, "OPTION", connected, on_error=print)

    def test_input(self):
        views = connected().buffered("views")
        for id in ("", "a" * 256, b"a", 1.0, True, None, "\ud800", 10**255):
            self.assert_raises(NotCounted, "BADID", views.add, id)
        for delta in (1.0, "1", None, True, 2**63):
            self.assert_raises(NotCounted, "BADARG", views.add, "a", delta)
        self.assertEqual(views.add(new_id(), enum.IntEnum("Delta", "UP").UP), 1)
        id = new_id()
        good, bad, twice = views.add_many([(id, 1), ("", 1), (id, 1)])
        self.assertEqual((good, bad.reason, twice), (1, "BADID", 2))
        number = time.time_ns()
        self.assertEqual((views.add(number), views.add(str(number)), views.add_many({number: 1})), (1, 2, [3]))
        results = views.add_many({f"{id}/{number}": number for number in range(2500)})
        self.assertEqual(results, list(range(2500)))

    def test_pairs_that_cannot_be_read_count_nothing(self):
        views, id = connected().buffered("views"), new_id()

        def failing():
            yield id, 1
            raise KeyError

        for pairs, error in ((failing(), KeyError), ([(id, 1), ("b",)], ValueError)):
            self.assertRaises(error, views.add_many, pairs)
            views.add_many([(new_id(), 1)])
            self.assertEqual(pending("views", id), 0)

    def test_errors_can_be_sent_to_other_processes(self):
        error = pickle.loads(pickle.dumps(NotCounted("RANGE", "why", value=5)))
        self.assertEqual((error.reason, error.value, str(error)), ("RANGE", 5, "RANGE: why"))
        self.assertIsInstance(error, CounterfoilError)


class Sums(Case):
    def test_many_hits_are_few_calls(self):
        views, id = connected().buffered("views"), new_id()
        views.add(id)
        before = sum(calls_of("views").values())
        for _ in range(2000):
            views.later(id)
        views.flush()
        self.assertEqual(pending("views", id), 2001)
        self.assertLess(sum(calls_of("views").values()) - before, 50)

    def test_sums_that_several_threads_send_count_once(self):
        client, ids = connected(later_every=0.001), [new_id() for _ in range(20)]
        views = client.buffered("views")

        def count():
            for number in range(400):
                views.later(ids[number % 20])
                if number % 50 == 0:
                    views.flush()

        in_threads(8, count)
        client.close()
        self.assertEqual([pending("views", id) for id in ids], [160] * 20)

    def test_dropped_sums_are_reported(self):
        dropped, id = [], new_id()
        views = connected().buffered("views", on_error=lambda *args: dropped.append(args))
        views.add(id, 2**63 - 1)
        views.later(id)
        with self.assertLogs("counterfoil"):
            self.assert_raises(NotCounted, "RANGE", views.flush)
        self.assertEqual(dropped[0][:3], (f"{NAMESPACE}/views", id, 1))
        views.flush()

    def test_sums_wait_for_redis(self):
        path = f"/tmp/counterfoil-{os.getpid()}.sock"
        views, id = Counterfoil.connect(f"unix://{path}", NAMESPACE, retry_for=0.1).buffered("views"), new_id()
        views.later(id, 5)
        self.assert_raises(NotCounted, "UNREACHABLE", views.flush)
        os.symlink(SOCKET, path)
        self.addCleanup(os.unlink, path)
        views.client.session.outages.clear()
        views.flush()
        self.assertEqual(pending("views", id), 5)

    def test_many_sums_wait_for_one_connection(self):
        views = Counterfoil.connect("unix:///nowhere.sock", NAMESPACE, retry_for=0.2, later_every=30).buffered("views")
        for number in range(100):
            views.later(str(number))
        attempts = attempts_of(views.channel.session)
        self.assert_raises(NotCounted, "UNREACHABLE", views.flush)
        self.assertLess(len(attempts), 10)
        views.channel.sums.waiting, views.channel.sums.temporary = {}, None

    def test_a_family_that_fails_does_not_hold_up_others(self):
        id, client = new_id(), connected(later_every=30)
        views, nobody = client.buffered("views"), client.buffered("nobody")
        nobody.later(id)
        views.later(id)
        with self.assertLogs("counterfoil"):
            self.assert_raises(NotCounted, "UNCONFIGURED", client.close)
        self.assertEqual(pending("views", id), 1)

    def test_sums_are_bounded(self):
        views = Counterfoil.connect("unix:///nowhere.sock", NAMESPACE, retry_for=0.1, later_every=30).buffered("views")
        for number in range(100_000):
            views.later(str(number))
        views.later("0")
        self.assertTrue(self.assert_raises(NotCounted, "BUSY", views.later, "another").temporary)
        views.channel.sums.waiting.clear()

    def test_close(self):
        id = new_id()
        with connected(later_every=30) as client:
            client.buffered("views").later(id)
        self.assertEqual(pending("views", id), 1)
        client.close()
        views, votes = client.buffered("views"), client.cached("votes")
        for call in (views.later, views.add, views.value, votes.incr, votes.get, client.activity("readers").now):
            error = self.assert_raises(NotCounted, "CLOSED", call, id)
            self.assertEqual(str(error), "CLOSED: the client is closed, and takes no further calls")
        for call in (views.flush, client.flush):
            self.assert_raises(NotCounted, "CLOSED", call)

    def test_a_flush_of_all_families(self):
        client, id = connected(later_every=30), new_id()
        client.buffered("views").later(id)
        client.buffered("wide").later(id)
        client.flush()
        self.assertEqual((pending("views", id), pending("wide", id)), (1, 1))
        client.buffered("votes").later(id)
        with self.assertLogs("counterfoil"):
            self.assert_raises(Misconfigured, "MISMATCH", client.flush)
        client.flush()

    def test_close_sends_a_sum_that_is_being_taken(self):
        client, id, begun = connected(later_every=30), new_id(), threading.Event()
        views = client.buffered("views")

        class Slow(dict):
            def get(self, *args):
                begun.set()
                time.sleep(0.3)
                return super().get(*args)

        views.channel.sums.waiting = Slow()
        thread = threading.Thread(target=views.later, args=(id,))
        thread.start()
        begun.wait()
        client.close()
        thread.join()
        self.assertEqual(pending("views", id), 1)

    def test_close_reports_what_it_cannot_send(self):
        dropped = []
        client = Counterfoil.connect("unix:///nowhere.sock", NAMESPACE, retry_for=0.1, later_every=0.001)
        views = client.buffered("views", on_error=lambda *args: dropped.append(args[1:3]))
        views.later("a", 2)
        self.assert_raises(NotCounted, "UNREACHABLE", views.flush)
        views.later("b")
        with self.assertLogs("counterfoil"):
            self.assert_raises(NotCounted, "UNREACHABLE", client.close)
        self.assertEqual(sorted(dropped), [("a", 2), ("b", 1)])
        client.close()

    def test_a_thread_that_cannot_start(self):
        views, id = connected().buffered("views"), new_id()
        with mock.patch("threading.Thread.start", side_effect=RuntimeError("can't start new thread")):
            views.later(id)
        views.later(id)
        self.assert_pending("views", id, 2)

    def test_a_thread_that_ended(self):
        client, id, threads = connected(), new_id(), queue.Queue()

        def exit_with_error(*_):
            threads.put(threading.current_thread())
            sys.exit()

        votes = client.buffered("votes", on_error=exit_with_error)
        with self.assertLogs("counterfoil"):
            votes.later("a")
            threads.get(timeout=5).join()
        client.buffered("views").later(id)
        self.assert_pending("views", id, 1)
        self.assert_raises(Misconfigured, "MISMATCH", votes.flush)

    def test_a_close_waits_once_for_many_sums_of_several_families(self):
        for address in ("unix:///nowhere.sock", f"redis://{silent_server(self)}"):
            client = connected(later_every=30)
            families = [client.buffered(name) for name in ("views", "wide")]
            for family in families:
                family.add_many({})
                for number in range(6000):
                    family.later(str(number))
            away = Counterfoil.connect(address, NAMESPACE, timeout=0.5)
            client.session._redis, attempts = away.session.redis, attempts_of(client.session)
            with self.assertLogs("counterfoil") as logs, mock.patch("counterfoil._blocking.END_SECONDS", 0.4):
                self.assertRaises(CounterfoilError, client.close)
            self.assertLessEqual(len(attempts), 2)
            self.assertIn(f"{NAMESPACE}/views: +1 for '0' was not counted, and is dropped: ", logs.output[0])

    def test_a_close_reports_an_unknown_outcome(self):
        client, id = connected(later_every=30), new_id()
        views = client.buffered("views")
        views.add(id)
        views.later(id, 3)
        plain().client_pause(60_000, all=False)
        self.addCleanup(plain().client_unpause)
        with self.assertLogs("counterfoil") as logs, mock.patch("counterfoil._blocking.END_SECONDS", 0.5):
            self.assert_raises(OutcomeUnknown, "no reply", client.close)
        self.assertIn(f"{NAMESPACE}/views: +3 for {id!r} has an unknown outcome, and is dropped: no reply", logs.output[-1])

    def test_errors_of_dropped_sums_are_not_kept(self):
        small = connected(later_every=30).buffered("small")  # a family with room for 2 ids
        for number in range(202):
            small.later(str(number))
        with self.assertLogs("counterfoil"):
            run(small.channel.sums.send(small.client.deadline()))
        gc.collect()
        self.assertLess(sum(isinstance(one, CounterfoilError) for one in gc.get_objects()), 50)
        self.assert_raises(NotCounted, "FULL", small.flush)

    def test_a_flush_that_a_handler_of_a_signal_interrupts(self):
        path, id = f"/tmp/counterfoil-{os.getpid()}.sock", new_id()
        views = Counterfoil.connect(f"unix://{path}", NAMESPACE, later_every=30).buffered("views")
        views.later(id, 5)

        def stop(*_):
            raise Stop

        signal.signal(signal.SIGALRM, stop)
        known = connected().buffered("views").channel
        known.family.add(new_id())
        for descriptions in ({}, known.descriptions):  # while it asks for the epoch, and while it counts
            views.channel.descriptions, views.channel._last = descriptions, descriptions.get(0)
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            self.assertRaises(Stop, views.flush)
        os.symlink(SOCKET, path)
        self.addCleanup(os.unlink, path)
        views.flush()
        self.assertEqual(pending("views", id), 5)

    def test_a_sum_is_sent_long_after_an_interrupt(self):
        client, id = plain(), new_id()
        views = Counterfoil(client, NAMESPACE, later_every=30).buffered("views")
        views.add(id)
        execute = client.execute_command
        for arrives in (True, False):

            def interrupted(*words):
                if arrives:
                    execute(*words)
                raise KeyboardInterrupt

            views.later(id, 5)
            views.client.retry_for, client.execute_command = 0.05, interrupted
            self.assertRaises(KeyboardInterrupt, views.flush)
            time.sleep(0.05)
            views.client.retry_for, client.execute_command = 10, execute
            views.flush()
        self.assertEqual(pending("views", id), 11)

    def test_an_interrupt_at_any_point_of_a_flush(self):
        views, id, point = connected(later_every=30).buffered("views"), new_id(), 1
        views.add(id)
        views.later(id)
        while interrupt_at(point, views.flush):
            views.flush()
            point += 1
            self.assertEqual(pending("views", id), point)
            views.later(id)

    def test_an_interrupted_flush_counts_once(self):
        views, ids, calls = connected(later_every=30).buffered("views"), [new_id() for _ in range(4)], []
        enter = views.channel.enter

        def interrupted(*args):
            calls.append(args)
            if len(calls) == 3:
                raise KeyboardInterrupt
            return enter(*args)

        views.add(ids[0])
        for id in ids:
            views.later(id)
        views.channel.enter = interrupted
        self.assertRaises(KeyboardInterrupt, views.flush)
        views.flush()
        self.assertEqual([pending("views", id) for id in ids], [2, 1, 1, 1])

    def test_an_interrupted_flush_loses_nothing(self):
        views, ids, reads = connected(later_every=30).buffered("views"), [new_id() for _ in range(4)], []

        class Unavailable(NotCounted):
            @property
            def temporary(self):
                reads.append(self)
                if len(reads) == 3:
                    raise KeyboardInterrupt
                return True

            @temporary.setter
            def temporary(self, value):
                pass

        views.add(ids[0])
        for id in ids:
            views.later(id)
        views.channel.enter = lambda _, *args: Entry(None, 0, *args, Unavailable("LOADING"), settled=True)
        self.assertRaises(KeyboardInterrupt, views.flush)
        del views.channel.enter
        try:
            views.flush()
        except NotCounted:
            views.flush()
        self.assertEqual([pending("views", id) for id in ids], [2, 1, 1, 1])

    def test_a_tracer_that_formats_commands_changes_no_outcome(self):
        class Traced(redis.Redis):
            def execute_command(self, *args, **options):
                formatted = [arg.encode() if isinstance(arg, str) else repr(arg) for arg in args]
                return super().execute_command(*args, **options) if formatted else None

        views, id = Counterfoil(Traced(unix_socket_path=SOCKET), NAMESPACE, later_every=30).buffered("views"), new_id()
        views.add(id)
        plain().config_set("maxmemory", 1)
        try:
            for number in range(7):
                views.later(f"{id}/{number}")
            self.assertTrue(self.assert_raises(NotCounted, "OOM", views.flush).temporary)
        finally:
            plain().config_set("maxmemory", 0)
        views.flush()
        self.assertEqual(sum(pending("views", f"{id}/{number}") for number in range(7)), 7)

    def test_a_sum_beyond_64_bits_is_refused(self):
        views, id = connected(later_every=30).buffered("views"), new_id()
        views.later(id, 2**63 - 1)
        self.assert_raises(NotCounted, "RANGE", views.later, id)
        views.flush()
        self.assertEqual(pending("views", id), 2**63 - 1)

    def test_the_last_on_error_of_a_family_is_called(self):
        dropped, client = [], connected(later_every=30)
        client.buffered("votes").later("a")
        votes = client.buffered("votes", on_error=lambda *args: dropped.append(args[1]))
        with self.assertLogs("counterfoil"):
            self.assert_raises(Misconfigured, "MISMATCH", votes.flush)
        self.assertEqual(dropped, ["a"])


class Kinds(Case):
    def test_a_partition_without_an_incarnation_is_not_read(self):
        votes, id = connected().cached("votes", read_row=lambda id: 7), new_id()
        self.assertEqual(votes.get(id), 7)
        meta = f"cf1:{{{NAMESPACE}/votes/{zlib.crc32(id.encode()) % 2}}}:meta"
        plain().rename(meta, f"{meta}:away")
        try:
            self.assertTrue(self.assert_raises(NotCounted, "UNCONFIGURED", votes.get, id).temporary)
        finally:
            plain().rename(f"{meta}:away", meta)
        self.assertEqual(votes.get(id), 7)

    def test_series(self):
        hits, name = connected().series("hits"), new_id()
        hits.add(name, 2)
        hits.add(name)
        for label, slices in (("60s", 120), ("day", 31)):
            window = hits.get(name, label)
            self.assertEqual((len(window), window[-1][1], sum(count for _, count in window)), (slices, 3, 3))
        days = [(later - start) // 3600 for (start, _), (later, _) in zip(window, window[1:])]
        self.assertLessEqual(set(days), {23, 24, 25})
        self.assert_raises(NotCounted, "BADARG", hits.get, name, "5s")
        hits.add(name, 4, time.time() - 3600)
        hits.add(name, 8, datetime.now(timezone.utc) - timedelta(minutes=90))
        window = hits.get(name, "60s")
        self.assertEqual((sum(count for _, count in window[:60]), sum(count for _, count in window)), (12, 15))
        for at in (time.time() + 120, 1, datetime(2014, 9, 8), "now", -1):
            self.assert_raises(NotCounted, "BADTIME", hits.add, name, 1, at)

    def test_activity(self):
        readers, page = connected().activity("readers"), new_id()
        in_threads(8, lambda: [readers.touch(page, visitor) for visitor in ("a", b"\xff", "c")])
        self.assertEqual(readers.now(page), (24, 3))

    def test_a_page_of_another_type_fails_alone(self):
        readers, foreign, page = connected().activity("readers"), new_id(), new_id()
        description = run(readers.channel.describe(0, readers.client.deadline()))
        stripe = zlib.crc32(b"a") % description.settings["stripes"]
        [key] = readers.keys(readers.partition(description, (foreign, b"a", 1)), f"views:{stripe}:{foreign}")
        plain().set(key, "foreign")
        self.addCleanup(plain().delete, key)
        pages = [foreign, *(f"{page}/{number}" for number in range(40))]
        refused, *counted = run(readers.channel.change_all([(one, b"a", 1) for one in pages]))
        self.assertEqual((type(refused), refused.reason, counted), (NotCounted, "WRONGTYPE", [1] * 40))
        self.assertEqual([readers.now(one) for one in pages[1:]], [(1, 1)] * 40)

    def test_visitors(self):
        daily, scope = connected().visitors("daily"), new_id()
        news = [daily.first_visit(scope, "2026-11-25", visitor) for visitor in ("a", "b", "a")]
        self.assertEqual((news, daily.value(scope, "2026-11-25")), ([True, True, False], 2))
        self.assert_raises(NotCounted, "BADID", daily.first_visit, scope, "today", "a")
        for scope in (None, b"a", 1.0, ""):
            self.assert_raises(NotCounted, "BADID", daily.first_visit, scope, "2026-11-25", "a")


if __name__ == "__main__":
    unittest.main()
