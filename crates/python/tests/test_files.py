"""Pushdown reads and BPF-KV: what C reaches."""

import _thread
import gc
import math
import os
import signal
import socket
import struct
import subprocess
import threading
import time

import bpfof
import pytest
from conftest import BPFOF, REPOSITORY, ctrl_c, stopped, write

BUCKETS = 16


@pytest.fixture(scope="session")
def find(tmp_path_factory):
    """docs/examples/find.bpf.c, compiled."""
    found = tmp_path_factory.mktemp("find") / "find.bpf.o"
    command = ["clang", "-O2", "-g", "-target", "bpf", "-mcpu=v3", f"-I{REPOSITORY}/functions/include", "-c"]
    subprocess.run([*command, str(REPOSITORY / "docs/examples/find.bpf.c"), "-o", str(found)], check=True)
    return found


def records(count: int) -> bytes:
    record = lambda key: struct.pack("<QQ48s", key, (key + BUCKETS) * 64 if key + BUCKETS < count else 0, b"value of %d" % key)
    return b"".join(map(record, range(count)))


def check(file: bpfof.File, find, at_target: bool) -> None:
    function = file.load(find)
    key = struct.pack("<Q", 905)
    answer = file.read_pushdown(function, 905 % BUCKETS * 64, 64, key, scratch=56)
    assert answer.data == key + b"value of 905".ljust(48, b"\0")
    assert (answer.hops, answer.at_target) == (905 // BUCKETS + 1, at_target)
    keys = [3, 500, 999, 4000]
    answers = file.read_pushdown_many(function, [(key % BUCKETS * 64, 64, struct.pack("<Q", key)) for key in keys])
    assert [answer.data[8:21].rstrip(b"\0") for answer in answers] == [b"value of 3", b"value of 500", b"value of 999", b""]
    assert file.read(64 * 7, 8) == struct.pack("<Q", 7)
    assert len(file.read(64 * 999, 1000)) == 64 and file.read(1 << 40, 10) == b""
    with pytest.raises(bpfof.FunctionError) as raised:
        file.read_pushdown(function, 0, 32, key)
    assert raised.value.value == 1 and raised.value.status
    with pytest.raises(bpfof.QuestionError):
        file.read_pushdown(function, 0, 64, bytes(5000))
    for offset, size in ((-1, 64), (0, -1), (1 << 64, 64)):
        with pytest.raises(bpfof.QuestionError, match="negative or too large"):
            file.read(offset, size)
        with pytest.raises(bpfof.QuestionError, match="negative or too large"):
            file.read_pushdown(function, offset, size, key)


def in_a_child(what) -> int:
    """The status of a child of this process that does this. One that hangs is ended."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.alarm(20)
            what()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def check_child(file: bpfof.File, function: bpfof.Function) -> None:
    """A child opens its own files; its actions on its parent's files have no effect."""

    def use():
        nonlocal function
        for call in (lambda: file.read(0, 1), lambda: file.read_pushdown(function, 0, 64)):
            with pytest.raises(bpfof.QuestionError, match="before fork"):
                call()
        file.close()
        function = None
        gc.collect()

    assert in_a_child(use) == 0


def test_here(tmp_path, find):
    with bpfof.open(write(tmp_path / "records", records(1000)), here=True) as file:
        check(file, find, False)
        check_child(file, file.load(find))
        with bpfof.open(tmp_path / "records", here=True) as other, pytest.raises(bpfof.QuestionError):
            other.read_pushdown(file.load(find, "find"), 0, 64)
        with pytest.raises(bpfof.QuestionError, match="the object has find"):
            file.load(find, "other")
        with pytest.raises(bpfof.QuestionError):
            file.load(b"no object")
        # No target will ever have a map.
        assert not file.wait_mapped(math.inf) and not file.wait_mapped(1e300)
        for timeout in (-1.0, -math.inf, math.nan):
            with pytest.raises(bpfof.QuestionError, match="0 seconds or more"):
                file.wait_mapped(timeout)
    with pytest.raises(ValueError, match="closed"):
        file.read(0, 1)
    with pytest.raises(bpfof.FileError) as raised:
        bpfof.open(tmp_path / "none", here=True)
    assert raised.value.errno == 2 and raised.value.path == str(tmp_path / "none")


def test_at_a_target(disk, find):
    path = write(disk.mount / "records", records(1000))
    with bpfof.open(path, fallback=False, **disk.how) as file:
        assert file.wait_mapped() and file.is_connected and disk.url in file.place
        check(file, find, True)
        function = file.load(find)
        check_child(file, function)
        # The connection is intact, and the function is still loaded at the target.
        key = struct.pack("<Q", 3)
        assert file.read_pushdown(function, 3 * 64, 64, key, scratch=56).at_target
        check(file, find, True)


def test_rows_cannot_be_used_after_fork(tmp_path):
    data = bpfof.dataset(write(tmp_path / "n.bin", bytes(8 << 20)), schema="n i64", here=True)
    batches = data.to_batches()
    next(batches)

    def take():
        with pytest.raises(bpfof.QuestionError, match="before fork"):
            list(batches)

    assert in_a_child(take) == 0


def test_a_target_that_refuses(disk):
    other = disk.url.partition("nqn.")[0] + "nqn.2026-01.org.example:other"
    how = {"target": other, "device": disk.how["device"], "fallback": False}
    for ask in (lambda: bpfof.open_kv(other), lambda: bpfof.open(write(disk.mount / "refused", bytes(512)), **how)):
        with pytest.raises(bpfof.TargetError, match="Connect"):
            ask()


def test_other_threads_run_while_a_function_ends(disk, find):
    path = write(disk.mount / "ends", records(1000))
    with bpfof.open(path, fallback=False, **disk.how) as file:
        function = file.load(find)
        with stopped(disk.process):
            timer = threading.Timer(0.5, os.kill, (disk.process.pid, signal.SIGCONT))
            begun = time.monotonic()
            timer.start()
            del function
            # The thread of the timer has run: the target answers no sooner.
            assert 0.5 <= time.monotonic() - begun < 10
            timer.join()


def test_ctrl_c_while_it_opens():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(10)
        accepted = []

        def interrupt():
            accepted.append((silent.accept()[0], time.monotonic()))
            _thread.interrupt_main()

        thread = threading.Thread(target=interrupt)
        with pytest.raises(KeyboardInterrupt):
            thread.start()
            bpfof.open_kv(f"nvme-tcp://127.0.0.1:{silent.getsockname()[1]}/nqn.2026-01.org.example:silent")
        ended = time.monotonic()
        thread.join()
        [(connection, interrupted)] = accepted
        connection.close()
        # Less than the timeout of a connection.
        assert ended - interrupted < 3


def threads() -> int:
    return len(os.listdir("/proc/self/task"))


def settled(count) -> int:
    """A count that has not changed for a while: threads that have done their work end soon."""
    value, since = count(), time.monotonic()
    while time.monotonic() - since < 0.1:
        if (now := count()) != value:
            value, since = now, time.monotonic()
        time.sleep(0.01)
    return value


def test_ctrl_c_while_it_waits_for_maps(disk):
    path = write(disk.mount / "waits", records(1000))
    with bpfof.open(path, fallback=False, **disk.how) as file:
        assert file.wait_mapped()
        before = settled(threads)
        with stopped(disk.process):
            # The file needs another map, which the target does not take.
            with path.open("ab") as grown:
                grown.write(bytes(64))
            with ctrl_c(0.5):
                file.wait_mapped(3600)
            # Less than the timeout of a command, which would end the wait as well.
            end = time.monotonic() + 3
            while threads() > before and time.monotonic() < end:
                time.sleep(0.01)
            assert threads() <= before


def refused_after_fork(store: bpfof.KeyValueStore) -> None:
    with pytest.raises(bpfof.QuestionError, match="before fork"):
        store.get(42)


def test_addresses_of_key_value():
    with pytest.raises(bpfof.QuestionError, match="nvme-rdma://"):
        bpfof.open_kv("nvme-rdma://nowhere")
    with pytest.raises(TypeError, match="here, typo"):
        bpfof.open_kv("nvme-tcp://nowhere/nqn.x", here=True, typo=1)


def test_key_value(disk, tmp_path):
    path = tmp_path / "table"
    subprocess.run([BPFOF, "kv", "create", "--levels", "3", "--file", path], check=True, capture_output=True)
    on_disk = write(disk.mount / "table", path.read_bytes())
    stores = [bpfof.open_kv(path, here=True), bpfof.open_kv(on_disk, fallback=False, **disk.how)]
    process = subprocess.Popen(
        [BPFOF, "target", "--listen", "127.0.0.1:0", "--json", "--quiet", "--exit-with-parent"]
        + ["--namespace", f"file:path={path}"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        import json

        stores.append(bpfof.open_kv(json.loads(process.stdout.readline())["url"]))
        for store in stores:
            with pytest.raises(bpfof.QuestionError, match="negative or too large"):
                store.get_many([-1])
            assert in_a_child(lambda: refused_after_fork(store)) == 0
        values = [store.get_many([0, 42, 10**12, 7]) for store in stores]
    finally:
        process.kill()
        process.wait()
    assert values[0] == values[1] == values[2]
    assert len(values[0][1]) == 64 and values[0][2] is None and stores[0].get(7) == values[0][3]
    with pytest.raises(bpfof.DataError):
        bpfof.open_kv(write(tmp_path / "empty", bytes(1 << 20)), here=True)
