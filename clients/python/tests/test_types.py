"""The types of the package, as mypy sees them in an application."""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import counterfoil

PROGRAM = """
import asyncio
import redis
import redis.asyncio
from typing import List, Optional, Tuple, Union
import counterfoil
import counterfoil.asyncio

client = counterfoil.Counterfoil(redis.Redis(), "shop", retry_for=5)
pending: Optional[int] = client.buffered("views").add("a", 2)
many: List[Union[int, None, counterfoil.CounterfoilError]] = client.buffered("views").add_many({"a": 1})
window: List[Tuple[int, int]] = client.series("hits").get("a", "60s")
views: int = client.activity("readers").now("front").views
isinstance(client.visitors("daily").first_visit("shop", "2026-11-25", b"v"), bool)

async def main() -> int:
    other = counterfoil.asyncio.Counterfoil.connect("redis://localhost", "shop")
    other.buffered("views").later("a")
    task: asyncio.Task[Optional[int]] = asyncio.create_task(other.buffered("views").add("a"))
    await task
    return await other.cached("votes").incr("a")

client.buffered("views").add(1)
client.buffered("views").add_many({1: 1})
client.flush()
client.buffered("views").add(1.0)  # error: 1
client.buffered("views").add("a", by=1)  # error: 2
number: str = client.cached("votes").get("a")  # error: 3
counterfoil.Counterfoil.connect("redis://localhost", "shop", retries=3)  # error: 4
"""


class Types(unittest.TestCase):
    def test_the_package_and_an_application(self):
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder, "application.py")
            program.write_text(PROGRAM)
            package = str(Path(counterfoil.__file__).parent)
            config = str(Path(__file__).parents[1] / "pyproject.toml")  # names modules that need not be installed
            mypy = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--cache-dir", folder]
            mypy += ["--config-file", config]
            done = subprocess.run([*mypy, "-p", "counterfoil"], cwd=folder, stdout=subprocess.PIPE, text=True, check=False)
            self.assertEqual((done.returncode, done.stdout), (0, ""), package)
            done = subprocess.run([*mypy, str(program)], cwd=folder, stdout=subprocess.PIPE, text=True, check=False)
        lines = {int(line.split(":")[1]) for line in done.stdout.splitlines() if ": error:" in line}
        expected = {number for number, line in enumerate(PROGRAM.split("\n"), 1) if "# error" in line}
        self.assertEqual(lines, expected, done.stdout)


if __name__ == "__main__":
    unittest.main()
