"""Jobs: requests under a schedule of retries, and `later` in processes that end without Python's exit hooks."""

import importlib.util
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
import types
import unittest
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from unittest import mock

import redis

from counterfoil import OutcomeUnknown
from counterfoil._redis import SHA1
from support import NAMESPACE, SOCKET, Case, connected, new_id, pending, plain

SCHEDULE = "killed before", "lost reply", "killed after", "none"

MODULE = """if True:
    import os, sys, redis, counterfoil
    path, namespace = os.environ["COUNTERFOIL_TEST_SOCKET"], os.environ["COUNTERFOIL_TEST_NAMESPACE"]
    views = counterfoil.Counterfoil.connect("unix://" + path, namespace, later_every=60).buffered("views")
    done = redis.Redis(unix_socket_path=path)

    def hit(id):
        views.later(id)
        done.incr("done/" + id)
"""
CELERY = MODULE + """
    import celery
    app = celery.Celery("jobs", broker="redis+socket://" + path)
    hit = app.task(hit, name="hit")
"""


def run_job(name, epoch, id, fault):
    """A worker that is killed, or loses replies."""
    views = connected(retry_for=0.45 if fault == "lost reply" else 10).buffered("views")
    session = views.client.session
    execute = session.execute

    async def disturbed(words, deadline):
        is_counting = words[1] == SHA1["buffered_add"]
        if is_counting and fault == "killed before":
            os._exit(9)
        reply = await execute(words, deadline)
        if is_counting and fault == "killed after":
            os._exit(9)
        if is_counting and fault == "lost reply":
            raise redis.TimeoutError("Timeout reading from socket")
        return reply

    session.execute = disturbed
    views.add_once(name, id, epoch=epoch)


def took_later(id):
    connected(later_every=60).buffered("views").later(id)


class Requests(Case):
    def age(self, memory):
        """Ends the epoch of calls, or the generation of requests."""
        plain().hset(f"cf1:{{{NAMESPACE}/views/0}}:{memory}", "=began_at", 1)

    def test_a_schedule_of_retries(self):
        views, id, fork = connected().buffered("views"), new_id(), multiprocessing.get_context("fork")
        jobs = [f"{id}/{number}" for number in range(8)]
        stored = {job: views.request_epoch(job, id) for job in jobs}
        for round in range(len(SCHEDULE)):
            for number, job in enumerate(jobs):
                # jobs begin at different points of the schedule
                fault = SCHEDULE[(number + round) % len(SCHEDULE)]
                with open(os.devnull, "w") as devnull, mock.patch("sys.stderr", devnull):
                    process = fork.Process(target=run_job, args=(job, stored[job], id, fault))
                    process.start()
                    process.join()
                self.assertEqual(process.exitcode, {"lost reply": 1, "none": 0}.get(fault, 9))
            self.age("calls")
        self.assertEqual(pending("views", id), len(jobs))

    def test_a_job_that_comes_too_late(self):
        views, id = connected().buffered("views"), new_id()
        epoch = views.request_epoch("job", id)
        self.assertTrue(views.add_once("job", id, epoch=epoch))
        for _ in range(2):
            self.age("requests")
            views.request_epoch("job", id)
        self.assert_raises(OutcomeUnknown, "EXPIRED", views.add_once, "job", id, epoch=epoch)
        self.assertEqual(pending("views", id), 1)


is_long = unittest.skipUnless(os.environ.get("COUNTERFOIL_LONG"), "it takes long")


class Ends(Case):
    def test_children_of_multiprocessing(self):
        client = connected(later_every=60)
        for method in ("fork", "spawn", "forkserver"):
            context, id = multiprocessing.get_context(method), new_id()
            children = [context.Process(target=took_later, args=(id,)) for _ in range(2)]
            if method == "fork":
                children.append(context.Process(target=client.buffered("views").later, args=(id,)))
            for step in ("start", "join"):
                for child in children:
                    getattr(child, step)()
            self.assertEqual(pending("views", id), len(children), method)

    def test_pools(self):
        context, id = multiprocessing.get_context("fork"), new_id()
        with ProcessPoolExecutor(2, mp_context=context) as pool:
            list(pool.map(took_later, [id] * 10))
        self.assertEqual(pending("views", id), 10)
        pool = context.Pool(2)
        pool.map(took_later, [id] * 10)
        pool.close()
        pool.join()
        self.assertEqual(pending("views", id), 20)

    def test_a_job_of_rq_is_counted_at_once(self):
        views, id = connected(later_every=60).buffered("views"), new_id()
        with mock.patch.dict(sys.modules, rq=types.SimpleNamespace(get_current_job=lambda: "job")):
            views.later(id)
        self.assertEqual(pending("views", id), 1)
        with mock.patch.dict(sys.modules, rq=types.SimpleNamespace(get_current_job=lambda: None)):
            views.later(id)
        self.assertEqual(pending("views", id), 1)
        views.client.close()

    def run_worker(self, module, library, enqueue, *command):
        """Runs a worker, and stops it when it has done ten jobs."""
        if not importlib.util.find_spec(library):
            self.skipTest(f"{library} is not installed")
        id = new_id()
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "jobs.py").write_text(module)
            run = {"cwd": folder, "env": {**os.environ, "PYTHONPATH": os.pathsep.join([folder, *sys.path])}, "stdout": subprocess.DEVNULL}
            subprocess.run([sys.executable, "-c", enqueue, SOCKET, id], check=True, **run)
            worker = subprocess.Popen([sys.executable, "-m", *command], stderr=subprocess.DEVNULL, **run)
            self.addCleanup(worker.kill)
            end = time.monotonic() + 40
            while plain().get(f"done/{id}") != b"10" and time.monotonic() < end:
                time.sleep(0.05)
            worker.send_signal(signal.SIGTERM)
            worker.wait(20)
        self.assertEqual(pending("views", id), 10)

    @is_long
    def test_children_of_celery(self):
        enqueue = "import sys, jobs; [jobs.hit.delay(sys.argv[2]) for _ in range(10)]"
        command = "celery", "-A", "jobs", "worker", "-P", "prefork", "-c", "2"
        self.run_worker(CELERY, "celery", enqueue, *command)

    @is_long
    def test_children_of_rq(self):
        enqueue = """if True:
            import sys, redis, rq
            queue = rq.Queue(connection=redis.Redis(unix_socket_path=sys.argv[1]))
            for _ in range(10):
                queue.enqueue("jobs.hit", sys.argv[2])"""
        self.run_worker(MODULE, "rq", enqueue, "rq.cli", "worker", "--url", f"unix://{SOCKET}")


if __name__ == "__main__":
    unittest.main()
