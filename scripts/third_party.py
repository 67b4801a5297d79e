#!/usr/bin/env python3
"""Prints the notices of the Rust libraries that the programs and libraries of packages contain.

    scripts/third_party.py PACKAGE…

PACKAGE is a package of this workspace. Licence texts that several libraries share are printed once.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

NAMES = re.compile(r"^(licen[cs]e|copying|notice|copyright|unlicense)", re.IGNORECASE)


def metadata():
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", "x86_64-unknown-linux-gnu"]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def linked(data, names):
    """Returns the external packages that these depend on, without build and test dependencies."""
    nodes = {node["id"]: node for node in data["resolve"]["nodes"]}
    packages = {package["id"]: package for package in data["packages"]}
    todo = [package["id"] for package in packages.values() if package["name"] in names and not package["source"]]
    found = set()
    while todo:
        current = todo.pop()
        if current in found:
            continue
        found.add(current)
        for dependency in nodes[current]["deps"]:
            if any(kind["kind"] is None for kind in dependency["dep_kinds"]):
                todo.append(dependency["pkg"])
    return sorted((packages[at] for at in found if packages[at]["source"]), key=lambda p: (p["name"], p["version"]))


def texts(package):
    folder = Path(package["manifest_path"]).parent
    for path in sorted(folder.iterdir()):
        if path.is_file() and NAMES.match(path.name):
            yield path.read_text(errors="replace").strip()


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    users = {}
    packages = linked(metadata(), set(sys.argv[1:]))
    print("Rust libraries that are part of the programs and libraries of bpf-of:\n")
    for package in packages:
        name = f"{package['name']} {package['version']}"
        print(f"  {name}: {package['license'] or 'see its licence below'}")
        for text in texts(package):
            key = " ".join(text.split())
            users.setdefault(key, (text, []))[1].append(name)
    for text, names in users.values():
        print(f"\n{'=' * 78}\n{', '.join(names)}\n{'=' * 78}\n\n{text}")


main()
