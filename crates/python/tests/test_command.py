"""`bpfof-query` as the wheel installs it."""

import subprocess
import sys

COMMAND = [sys.executable, "-c", "from bpfof._command import main; main()"]


def run(*arguments: str, **options) -> subprocess.CompletedProcess:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, **options)


def test_it_answers_and_tells_what_is_wrong(tmp_path):
    (tmp_path / "rows.csv").write_text("zone,fare\n1,2.5\n2,4\n1,1\n")
    question = "SELECT zone, sum(fare) FROM 'rows.csv' GROUP BY zone ORDER BY zone"
    answer = run("--csv", question, cwd=tmp_path)
    assert (answer.returncode, answer.stdout) == (0, "zone,sum(fare)\n1,3.5\n2,4.0\n"), answer.stderr
    wrong = run("SELECT tip FROM 'rows.csv'", cwd=tmp_path)
    assert wrong.returncode == 2 and "tip" in wrong.stderr and not wrong.stdout
    assert run("--no-such-option").returncode == 2
    assert "SELECT over files" in run("--help").stdout
