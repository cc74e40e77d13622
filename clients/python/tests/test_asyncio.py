"""The client for asyncio: group commit, cancelled tasks, event loops."""

import asyncio
import os
import unittest

import counterfoil
from counterfoil._redis import SHA1
from counterfoil.asyncio import Counterfoil
from support import DAEMON, NAMESPACE, SOCKET, Case, calls_of, in_child, new_id, pending, plain, plain_asyncio


def connected(**options):
    return Counterfoil.connect(f"unix://{SOCKET}", NAMESPACE, daemon=DAEMON, **options)


class Tasks(Case):
    def test_concurrent_calls_share_calls(self):
        async def count(client, id):
            views = client.buffered("views")
            await views.add(id)
            before = calls_of("views")
            results = await asyncio.gather(*(views.add(id) for _ in range(640)))
            made = [n - before.get(name, 0) for name, n in calls_of("views").items() if n != before.get(name)]
            await client.close()
            return results, made

        for make in (connected, lambda: Counterfoil(plain_asyncio(), NAMESPACE)):
            results, made = asyncio.run(count(make(), new_id()))
            self.assertEqual(results, list(range(2, 642)))
            self.assertEqual(len(made), 1)
            self.assertLess(made[0], 20)

    def test_first_calls_ask_for_the_family_once(self):
        async def count(id):
            async with connected() as client:
                execute, asked = client.session.execute, []

                async def noted(words, deadline):
                    asked.append(words[1] == SHA1["family_epoch"])
                    return await execute(words, deadline)

                client.session.execute = noted
                tasks = [asyncio.create_task(client.buffered("views").add(id)) for _ in range(300)]
                await asyncio.sleep(0)
                tasks[0].cancel()  # the task that asks Redis: another one asks then
                results = await asyncio.gather(*tasks, return_exceptions=True)
                self.assertIsInstance(results[0], asyncio.CancelledError)
                return results[1:], sum(asked)

        self.assertEqual(asyncio.run(count(new_id())), (list(range(1, 300)), 2))

    def test_a_cancelled_task_does_not_take_others_with_it(self):
        async def count(id):
            async with connected() as client:
                views = client.buffered("views")
                await views.add(id)
                cancelled = 0
                for number in range(50):
                    if number % 10 == 0:
                        plain().client_pause(20, all=False)
                    tasks = [asyncio.create_task(views.add(id)) for _ in range(4)]
                    for _ in range(1 + number % 8):  # cancels at different points of the call
                        await asyncio.sleep(0)
                    await asyncio.sleep(0.005 if number % 10 == 0 else 0)
                    tasks[0].cancel()
                    results = await asyncio.gather(*tasks, return_exceptions=True)
                    cancelled += isinstance(results[0], asyncio.CancelledError)
                    self.assertTrue(all(isinstance(one, int) or one is None for one in results[1:]), results)
                self.assertGreaterEqual(cancelled, 5)

        id = new_id()
        asyncio.run(count(id))
        self.assertIn(pending("views", id), range(151, 202))

    def test_a_task_that_is_cancelled_before_it_is_sent_is_not_counted(self):
        async def count(id, other):
            async with connected() as client:
                views = client.buffered("views")
                await views.add(id)
                plain().client_pause(300)
                tasks = [asyncio.create_task(views.add(one)) for one in (id, other)]
                await asyncio.sleep(0.05)
                tasks[1].cancel()
                await asyncio.wait(tasks)
                return await views.add(id)

        id, other = new_id(), new_id()
        self.assertEqual(asyncio.run(count(id, other)), 3)
        self.assertEqual(pending("views", other), 0)

    def test_timeouts(self):
        async def count(id):
            async with connected() as client:
                views = client.buffered("views")
                await views.add(id)
                for _ in range(20):
                    try:
                        await asyncio.wait_for(views.add(id), 0.0003)
                    except asyncio.TimeoutError:
                        pass
                return await views.add(id)

        id = new_id()
        self.assertEqual(asyncio.run(count(id)), pending("views", id))

    def test_calls_of_all_kinds(self):
        async def count(id):
            async with connected() as client:
                votes = client.cached("votes", read_row=read_row)
                values = await asyncio.gather(*(votes.incr(id) for _ in range(8)))
                plain = client.cached("votes", read_row=lambda id: 50)
                hits, readers, daily = client.series("hits"), client.activity("readers"), client.visitors("daily")
                await asyncio.gather(*(hits.add(id) for _ in range(150)))
                await asyncio.gather(*(readers.touch(id, visitor) for visitor in "aab"))
                news = await asyncio.gather(*(daily.first_visit(id, "2026-11-25", visitor) for visitor in "aab"))
                window = await hits.get(id, "60s")
                return sorted(values), await plain.get(id + "/2"), sum(n for _, n in window), await readers.now(id), sum(news)

        reads = []

        async def read_row(id):
            reads.append(id)
            await asyncio.sleep(0.05)
            return 10

        id = new_id()
        self.assertEqual(asyncio.run(count(id)), ([11, 12, 13, 14, 15, 16, 17, 18], 50, 150, (3, 2), 2))
        self.assertEqual(reads, [id])


class Sums(Case):
    def test_the_end_of_the_loop_sends_sums(self):
        async def count(id):
            views = connected(later_every=30).buffered("views")
            views.later(id, 3)
            await asyncio.sleep(0)

        id = new_id()
        asyncio.run(count(id))
        self.assertEqual(pending("views", id), 3)

    def test_later_is_refused_once_close_begins(self):
        async def count(id):
            client, accepted = connected(later_every=30), [1]
            views, execute = client.buffered("views"), client.session.execute
            views.later(id)
            await asyncio.sleep(0)  # the task that sends sums begins

            async def with_a_hit(*args):
                try:
                    if len(accepted) < 4:
                        views.later(id)
                        accepted.append(1)
                except counterfoil.NotCounted as error:
                    self.assertEqual(error.reason, "CLOSED")
                return await execute(*args)

            await views.add(new_id())
            client.session.execute = with_a_hit
            await client.close()
            for call in (lambda: views.add(id), lambda: views.value(id), client.flush):
                with self.assertRaises(counterfoil.NotCounted) as raised:
                    await call()
                self.assertEqual(raised.exception.reason, "CLOSED")
            return len(accepted)

        id = new_id()
        self.assertEqual(asyncio.run(count(id)), pending("views", id))

    def test_many_hits_and_a_flush(self):
        async def count(id):
            async with connected() as client:
                views = client.buffered("views")
                for number in range(5000):
                    views.later(id)
                    if number % 100 == 0:
                        await asyncio.sleep(0.001)
                await client.flush()
                return await views.value(id)

        self.assertEqual(asyncio.run(count(new_id())), 5000)

    def test_a_cancelled_flush_loses_nothing(self):
        async def count(id):
            async with connected(later_every=30) as client:
                views = client.buffered("views")
                for _ in range(20):
                    views.later(id)
                    task = asyncio.create_task(views.flush())
                    await asyncio.sleep(0.0002)
                    task.cancel()
                    await asyncio.wait([task])

        id = new_id()
        asyncio.run(count(id))
        self.assertEqual(pending("views", id), 20)


    def test_the_sums_of_a_cancelled_flush_are_sent_without_another(self):
        path, id = f"/tmp/counterfoil-{os.getpid()}.sock", new_id()

        async def count():
            views = Counterfoil.connect(f"unix://{path}", NAMESPACE).buffered("views")
            views.later(id)
            with self.assertRaises(asyncio.TimeoutError):
                await asyncio.wait_for(views.flush(), 0.1)
            os.symlink(SOCKET, path)
            self.addCleanup(os.unlink, path)
            for _ in range(100):
                await asyncio.sleep(0 if pending("views", id) else 0.05)
            return pending("views", id)

        self.assertEqual(asyncio.run(count()), 1)


class Loops(Case):
    def test_children_that_are_forked_with_the_loop(self):
        client, id, loop = connected(later_every=0.05), new_id(), asyncio.new_event_loop()
        views = client.buffered("views")

        async def later():
            views.later(id)
            await asyncio.sleep(0)

        async def child():  # it must not send the parent's sum
            await views.add(id)
            await asyncio.sleep(0.1)
            await views.add(id)

        for count in (lambda: views.add(id), later):
            loop.run_until_complete(count())
            for _ in range(2):
                os.waitpid(in_child(lambda: loop.run_until_complete(child())), 0)
        loop.run_until_complete(later())
        loop.run_until_complete(views.flush())
        loop.run_until_complete(client.close())
        loop.close()
        self.assertEqual(pending("views", id), 11)

    def test_a_client_of_the_application_belongs_to_one_loop(self):
        client = Counterfoil(plain_asyncio(), NAMESPACE)

        async def count():
            return await client.buffered("views").add(new_id())

        self.assertEqual(asyncio.run(count()), 1)
        with self.assertRaises(counterfoil.Misconfigured) as raised:
            asyncio.run(count())
        self.assertEqual(raised.exception.reason, "EVENT LOOP")

    def test_connections_of_its_own_follow_the_loop(self):
        client, id = connected(), new_id()

        async def count():
            return await client.buffered("views").add(id)

        self.assertEqual([asyncio.run(count()) for _ in range(3)], [1, 2, 3])

    def test_clients_that_do_not_fit(self):
        wrong = plain_asyncio(decode_responses=True)
        self.assert_raises(counterfoil.Misconfigured, "DECODED", Counterfoil, wrong, NAMESPACE)
        self.assert_raises(counterfoil.Misconfigured, "CLIENT", Counterfoil, plain(), NAMESPACE)


if __name__ == "__main__":
    unittest.main()
