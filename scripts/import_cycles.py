#!/usr/bin/env python3
"""Finds import cycles between the modules of each crate of this workspace.

A module is a file. It imports another if a path in it (`crate::…`, `super::…`, `self::…`, or one that
begins with a child module) names something that the other defines; re-exports (`pub use`) are
followed, and are not imports themselves. Tests (`#[cfg(test)]`) are left out.

cargo-modules has an acyclic check too, but it counts a module's parent as an import of each of its
children, so it reports every `use super::…` as a cycle, and it takes minutes to build.

usage: scripts/import_cycles.py [DIRECTORY of a crate ...]   (default: all of the workspace)
exit status 1 if there is a cycle; prints its imports."""

import os
import re
import sys

NO_CODE = re.compile(
    r'//[^\n]*|/\*.*?\*/|b?r(#*)".*?"\1|"(?:\\.|[^"\\])*"|\'(?:\\.|[^\\\'])\'', re.S)
MODULE = re.compile(r"^[ \t]*((?:#\[[^\]]*\]\s*)*)(?:pub(?:\([^)]*\))?\s+)?mod\s+(\w+)\s*;", re.M)
USE = re.compile(r"^[ \t]*((?:#\[[^\]]*\]\s*)*)(pub(?:\([^)]*\))?\s+)?use\s+([^;]+);", re.M)
PATH = re.compile(r"(?<![\w:])((?:crate|super|self)(?:::\w+)+)")


def expand(tree):
    """Returns the paths of a use tree, each with the name that it introduces."""
    tree = tree.strip()
    brace = tree.find("{")
    if brace < 0:
        path, _, alias = tree.partition(" as ")
        parts = [part.strip() for part in path.split("::") if part.strip()]
        if len(parts) > 1 and parts[-1] == "self":
            parts.pop()
        return [(parts, alias.strip() or parts[-1])]
    head = [part.strip() for part in tree[:brace].split("::") if part.strip()]
    found, depth, start = [], 0, brace + 1
    for at in range(brace, len(tree)):
        depth += {"{": 1, "}": -1}.get(tree[at], 0)
        if (tree[at] == "," and depth == 1) or depth == 0:
            if tree[start:at].strip():
                for parts, name in expand(tree[start:at]):
                    whole = head + ([] if parts == ["self"] else parts)
                    found.append((whole, whole[-1] if name == "self" else name))
            start = at + 1
            if depth == 0:
                break
    return found


class Module:
    def __init__(self, path, name, parent):
        self.path, self.name, self.parent = path, name, parent
        self.children, self.names, self.imports, self.globs = {}, {}, [], []


def is_test(attributes):
    return "cfg(test)" in attributes


def cut_tests(text):
    """Returns the text without inline modules of tests, which come last."""
    at = re.search(r"#\[cfg\((?:all\()?test[^\]]*\]\s*(?:#\[[^\]]*\]\s*)*(?:pub(?:\([^)]*\))?\s+)?mod\s+\w+\s*\{",
                   text)
    return text[: at.start()] if at else text


def load(path, name, parent):
    with open(path) as file:
        text = cut_tests(NO_CODE.sub('""', file.read()))
    module = Module(path, name, parent)
    directory = os.path.dirname(path)
    if os.path.basename(path) not in ("lib.rs", "main.rs", "mod.rs"):
        directory = os.path.join(directory, name)
    for attributes, child in MODULE.findall(text):
        candidates = [f"{directory}/{child}.rs", f"{directory}/{child}/mod.rs"]
        file = next((candidate for candidate in candidates if os.path.exists(candidate)), None)
        if file and not is_test(attributes):
            module.children[child] = load(file, child, module)
    for attributes, public, tree in USE.findall(text):
        if is_test(attributes):
            continue
        for parts, name in expand(tree):
            if parts[-1] == "*":
                module.globs.append((parts[:-1], bool(public)))
            else:
                module.names[name] = parts
            if not public:
                module.imports.append(parts)
    rest = USE.sub("", text)
    # A name that is re-exported and also used in this file counts as an import.
    exported = [name for _, public, tree in USE.findall(text) if public for _, name in expand(tree)]
    module.imports += [
        module.names[name] for name in exported
        if name in module.names and re.search(rf"(?<![\w:]){name}\b", rest)]
    module.imports += [found.split("::") for found in PATH.findall(rest)]
    for child in module.children:
        uses = re.findall(rf"(?<![\w:]){child}((?:::\w+)+)", rest)
        module.imports += [[child] + found.split("::")[1:] for found in uses]
    return module


def resolve(module, root, parts, seen=()):
    """Returns the module that defines the item at a path, or None if another crate does."""
    key = (module.path, tuple(parts))
    if key in seen:
        return None
    seen += (key,)
    at, rest = module, list(parts)
    if not rest:
        return module
    if rest[0] == "crate":
        at, rest = root, rest[1:]
    elif rest[0] in ("self", "super"):
        while rest and rest[0] in ("self", "super"):
            at = at.parent if rest.pop(0) == "super" and at.parent else at
    elif rest[0] not in at.children:
        return resolve(at, root, at.names[rest[0]] + rest[1:], seen) if (
            rest[0] in at.names and at.names[rest[0]][0] != rest[0]) else None
    while rest:
        if rest[0] in at.children:
            at, rest = at.children[rest[0]], rest[1:]
        elif rest[0] in at.names:
            return resolve(at, root, at.names[rest[0]] + rest[1:], seen)
        else:
            for glob, _ in at.globs:
                target = resolve(at, root, glob, seen)
                if target and target is not at and re.search(
                        rf"\b(?:struct|enum|fn|const|static|trait|type|macro_rules!)\s+{rest[0]}\b",
                        open(target.path).read()):
                    return target
            return at
    return at


def modules(module):
    yield module
    for child in module.children.values():
        yield from modules(child)


def circles(graph):
    """Returns strongly connected components of more than one module (Tarjan)."""
    index, low, stack, found = {}, {}, [], []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(graph[node]):
            if other not in index:
                visit(other)
            if other in stack:
                low[node] = min(low[node], low[other])
        if low[node] == index[node]:
            component = []
            while not component or component[-1] != node:
                component.append(stack.pop())
            if len(component) > 1:
                found.append(sorted(component))

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return found


def check(crate):
    source = os.path.join(crate, "src")
    failed = False
    for entry in ("lib.rs", "main.rs"):
        path = os.path.join(source, entry)
        if not os.path.exists(path):
            continue
        root = load(path, "crate", None)
        graph = {}
        for module in modules(root):
            targets = (resolve(module, root, parts) for parts in module.imports)
            names = {os.path.relpath(target.path, source) for target in targets if target}
            graph[os.path.relpath(module.path, source)] = names - {os.path.relpath(module.path, source)}
        for circle in circles(graph):
            failed = True
            print(f"{crate}: modules import each other:")
            for module in circle:
                others = ", ".join(sorted(graph[module] & set(circle)))
                print(f"  {module} imports {others}")
    return failed


def main():
    sys.setrecursionlimit(10000)
    root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
    if any(argument.startswith("-") for argument in sys.argv[1:]):
        print(__doc__)
        return 0
    crates = sys.argv[1:] or sorted(
        os.path.relpath(os.path.join(root, folder, name))
        for folder in ("crates", "stores")
        for name in os.listdir(os.path.join(root, folder))
        if os.path.isdir(os.path.join(root, folder, name, "src"))
    )
    if not crates:
        print("no crates found: run it in the repository", file=sys.stderr)
        return 2
    return int(any([check(crate) for crate in crates]))


if __name__ == "__main__":
    sys.exit(main())
