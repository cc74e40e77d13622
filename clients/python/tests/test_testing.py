"""The client in memory."""

import asyncio
import time
import unittest

from counterfoil import Misconfigured, NotCounted, OutcomeUnknown
from counterfoil.testing import AsyncCounterfoil, Counterfoil
from support import Case


class InMemory(Case):
    def test_all_kinds(self):
        client = Counterfoil("shop", {"votes": {"max": 10}, "days": {"ids": r"\d+/[\d-]+"}})
        views, votes, hits = client.buffered("views"), client.cached("votes"), client.series("hits")
        readers, daily = client.activity("readers"), client.visitors("daily")
        self.assertEqual((views.add("a"), views.add("a", 2), views.value("a"), views.values(["b", "a"])), (1, 3, 3, [0, 3]))
        self.assertEqual((votes.incr("a", 8), votes.set("a", 9), votes.get("a"), votes.value("a")), (8, 9, 9, 9))
        self.assertEqual(self.assert_raises(NotCounted, "RANGE", votes.incr, "a", 2).value, 9)
        self.assertEqual((views.add(7), views.value("7")), (1, 1))
        hits.add("front", 2)
        hits.later("front", at=time.time() - 3600)
        hits.flush()
        self.assertEqual([sum(n for _, n in hits.get("front", label)) for label in ("60s", "day")], [3, 3])
        self.assert_raises(NotCounted, "BADTIME", hits.add, "front", 1, 1)
        self.assert_raises(NotCounted, "BADARG", hits.get, "front", "7s")
        for visitor in "aab":
            readers.touch("front", visitor)
        self.assertEqual((readers.now("front"), readers.now("back")), ((3, 2), (0, 0)))
        news = [daily.first_visit("a", "2026-11-25", visitor) for visitor in "aab"]
        self.assertEqual((news, daily.value("a", "2026-11-25")), ([True, False, True], 2))
        for _ in range(3):
            views.later("later")
        views.flush()
        self.assertEqual(views.value("later"), 3)
        self.assert_raises(NotCounted, "BADID", client.visitors("days").first_visit, "a", "2026-11-25", "v")
        self.assert_raises(Misconfigured, "MISMATCH", client.cached("views").incr, "a")
        client.close()
        self.assert_raises(NotCounted, "CLOSED", views.later, "a")
        self.assert_raises(NotCounted, "CLOSED", views.add, "a")

    def test_requests(self):
        client = Counterfoil("shop", {"votes": {"max": 10}})
        views, votes = client.buffered("views"), client.cached("votes")
        epoch = views.request_epoch("job", "a")
        self.assertEqual([views.add_once("job", "a", 5, epoch=epoch) for _ in range(2)], [True, False])
        self.assertEqual([votes.incr_once("job", "a", 5) for _ in range(2)], [5, 5])
        self.assert_raises(NotCounted, "RANGE", votes.incr_once, "other", "a", 6)
        self.assertEqual((views.value("a"), votes.value("a")), (5, 5))
        self.assert_raises(OutcomeUnknown, "EXPIRED", views.add_once, "late", "a", 1, "another")

    def test_asyncio(self):
        async def count():
            async with AsyncCounterfoil("shop") as client:
                views = client.buffered("views")
                views.later("a")
                await client.flush()
                return await views.add("a"), await views.value("a"), await client.series("hits").get("a", "day")

        pending, value, window = asyncio.run(count())
        self.assertEqual((pending, value, len(window)), (2, 2, 100))


if __name__ == "__main__":
    unittest.main()
