"""Prints the licenses of all crates that a binary for TRIPLE contains: `licenses.py TRIPLE`."""

import json
import pathlib
import re
import subprocess
import sys

command = ["cargo", "metadata", "--format-version=1", "--locked", f"--filter-platform={sys.argv[1]}"]
metadata = json.loads(subprocess.check_output(command))
packages = {package["id"]: package for package in metadata["packages"]}
nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
queue = [id for id, package in packages.items() if package["name"] == "counterfoil-cli"]
reached = set()
while queue:
    id = queue.pop()
    if id not in reached:
        reached.add(id)
        dependencies = nodes[id]["deps"]
        queue += [one["pkg"] for one in dependencies if any(kind["kind"] is None for kind in one["dep_kinds"])]

crates_of = {}  # by the text without its layout, which many share
for package in sorted((packages[id] for id in reached), key=lambda package: package["name"]):
    if package["source"] is None:
        continue  # of this repository
    folder = pathlib.Path(package["manifest_path"]).parent
    files = [file for file in sorted(folder.iterdir()) if re.match(r"(?i)(licen[sc]e|copying|notice|unlicense)", file.name)]
    if re.fullmatch(r"(.* OR |.*/)?MIT( OR .*|/.*)?", package["license"]):  # the shortest of those to choose from
        files = [file for file in files if "MIT" in file.name.upper()] or files
    texts = [file.read_text(errors="replace").strip() for file in files if file.is_file()]
    crate = f"{package['name']} {package['version']}"
    for text in texts or [f"{package['license']}; authors: {', '.join(package['authors']) or package['repository']}"]:
        same = crates_of.setdefault(" ".join(text.split()), (text, []))
        same[1].append(f"{crate} ({package['license']})")

assert len(reached) > 100, reached
for text, crates in crates_of.values():
    print("=" * 79, *crates, "-" * 79, text, sep="\n", end="\n\n")
