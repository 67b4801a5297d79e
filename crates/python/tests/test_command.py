"""`bpfof-query` as the wheel installs it."""

import signal
import subprocess
import sys

COMMAND = [sys.executable, "-c", "from bpfof._command import main; main()"]


def run(*arguments: str, **options) -> subprocess.CompletedProcess:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, **options)


def test_answers_and_errors(tmp_path):
    (tmp_path / "rows.csv").write_text("zone,fare\n1,2.5\n2,4\n1,1\n")
    question = "SELECT zone, sum(fare) FROM 'rows.csv' GROUP BY zone ORDER BY zone"
    answer = run("--csv", question, cwd=tmp_path)
    assert (answer.returncode, answer.stdout) == (0, "zone,sum(fare)\n1,3.5\n2,4.0\n"), answer.stderr
    wrong = run("SELECT tip FROM 'rows.csv'", cwd=tmp_path)
    assert wrong.returncode == 2 and "tip" in wrong.stderr and not wrong.stdout
    assert run("--no-such-option").returncode == 2
    assert "SELECT over files" in run("--help").stdout


def test_ctrl_c(tmp_path):
    """While more is answered than a pipe takes."""
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text("a\n" + "12345\n" * 200_000)
    command = [*COMMAND, "--here", "--csv", "SELECT a FROM '*.csv'"]
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=tmp_path, **how) as child:
        assert child.stdout.readline() == "a\n"
        child.send_signal(signal.SIGINT)
        _, errors = child.communicate(timeout=60)
    assert (child.returncode, errors) == (130, "bpfof: interrupted\n")
