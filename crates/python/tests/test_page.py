"""docs/python.md: its cells are run, and what they print and draw is what the page shows.

With UPDATE_PAGES=1 the page and its pictures are written anew."""

import ast
import contextlib
import io
import os
import re
import subprocess
import sys

from conftest import BPFOF, REPOSITORY

PAGE = REPOSITORY / "docs/python.md"
IMAGES = REPOSITORY / "docs/images"
BLOCK = re.compile(r"^```(\w+)( notest)?\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.M | re.S)
# Commands for the user's machine, which the test does not run.
INSTALLS = ("python3 -m venv ", "pip install ", "cargo install ")


def run_cell(code: str, names: dict) -> str:
    """Runs a cell as a notebook does: what it prints, and the value of its last expression."""
    tree = ast.parse(code)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(tree, "cell", "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
            if value is not None:
                print(value)
    return printed.getvalue()


def run_shell(code: str) -> str:
    wanted = [line for line in code.splitlines() if not line.startswith(INSTALLS)]
    path = f"{os.path.dirname(BPFOF)}:{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
    command = ["bash", "-euo", "pipefail", "-c", "\n".join(wanted)]
    return subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, "PATH": path}).stdout


def tidy(text: str) -> str:
    return "".join(line.rstrip() + "\n" for line in text.strip("\n").splitlines()) if text.strip() else ""


def test_the_page(tmp_path, monkeypatch):
    import matplotlib
    import pandas

    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.hashsalt": "page", "svg.fonttype": "none", "font.family": "sans-serif"})
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    pandas.set_option("display.width", 100)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").symlink_to(REPOSITORY / "docs")
    names: dict = {}

    def cell(found: re.Match) -> str:
        language, is_left_out, code, shown = found.groups()
        if is_left_out:
            ast.parse(code)
            return found[0]
        printed = tidy(run_cell(code, names) if language == "python" else run_shell(code))
        output = f"\n```text\n{printed}```\n" if printed else ""
        return f"```{language}\n{code}```\n{output}"

    page = PAGE.read_text()
    made = BLOCK.sub(cell, page)
    picture = (tmp_path / "python-minutes.svg").read_text()
    if os.environ.get("UPDATE_PAGES"):
        PAGE.write_text(made)
        (IMAGES / "python-minutes.svg").write_text(picture)
        return
    assert made == page
    assert picture == (IMAGES / "python-minutes.svg").read_text()
