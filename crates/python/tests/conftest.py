"""Targets with mounted images, and where the program is."""

import _thread
import contextlib
import json
import os
import resource
import shutil
import signal
import subprocess
import tempfile
import threading
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]
BPFOF = os.environ.get("BPFOF") or shutil.which("bpfof")


def run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def cannot_mount() -> str | None:
    """Why this machine cannot mount an image."""
    if os.geteuid() != 0:
        return "this needs root, for loop devices and mounting"
    if BPFOF is None:
        return "there is no program bpfof in PATH"
    try:
        run("losetup", "--find")
        run("mkfs.ext4", "-V")
    except (OSError, subprocess.CalledProcessError) as error:
        return f"loop devices or mkfs.ext4 are missing: {error}"
    return None


def skip(why: str) -> None:
    """Leaves a test out. It fails where nothing may be left out: `make test` as root."""
    if os.environ.get("BPFOF_NO_SKIP"):
        pytest.fail(f"SKIPPED, and must not be: {why}")
    pytest.skip(why)


class Disk:
    """An image, served by a target process and mounted through a loop device."""

    def __init__(self, size_bytes: int = 96 << 20) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="bpfof-python-"))
        self.image = self.folder / "image"
        with self.image.open("xb") as image:
            image.truncate(size_bytes)
        run("mkfs.ext4", "-q", "-F", "-b", "4096", "-m", "0", "-J", "size=4", str(self.image))
        # Direct I/O: a write that completes on the loop device is in the image.
        self.loop = run("losetup", "--direct-io=on", "--find", "--show", str(self.image)).strip()
        self.mount = self.folder / "mount"
        self.mount.mkdir()
        run("mount", "-t", "ext4", self.loop, str(self.mount))
        self.start()

    def start(self, listen: str = "127.0.0.1:0") -> None:
        command = [BPFOF, "target", "--listen", listen, "--json", "--quiet", "--exit-with-parent"]
        command += ["--namespace", f"file:path={self.image}"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        announced = json.loads(self.process.stdout.readline())
        self.url, self.listening = announced["url"], announced["listening"]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        subprocess.run(["umount", "--lazy", str(self.mount)], check=False)
        subprocess.run(["losetup", "--detach", self.loop], check=False)
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def how(self) -> dict:
        """Arguments that name the target."""
        return {"target": self.url, "device": str(self.image)}

    @property
    def of_mount(self) -> str:
        """For BPFOF_TARGETS."""
        return f"{self.mount}={self.url} {self.image}"


@pytest.fixture(scope="session")
def disk():
    if why := cannot_mount():
        skip(why)
    disk = Disk()
    yield disk
    disk.close()


@pytest.fixture
def disks():
    """Four of them, for tests that kill one."""
    if why := cannot_mount():
        skip(why)
    disks = []
    try:
        for _ in range(4):
            disks.append(Disk())
        yield disks
    finally:
        for disk in disks:
            disk.close()


@pytest.fixture
def little_memory():
    """What asks for memory without end fails. Not for tests that start processes, which inherit it."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (12 << 30, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@contextlib.contextmanager
def stopped(process: subprocess.Popen):
    """A child process that does nothing meanwhile."""
    os.kill(process.pid, signal.SIGSTOP)
    try:
        # One thread takes the signal; the others run on until it stops them.
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        yield
    finally:
        os.kill(process.pid, signal.SIGCONT)


@contextlib.contextmanager
def ctrl_c(after_seconds: float):
    """Presses Ctrl-C once, which must end the block; never later."""
    timer = threading.Timer(after_seconds, _thread.interrupt_main)
    with pytest.raises(KeyboardInterrupt):
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()


def write(path: Path, contents: bytes) -> Path:
    with path.open("wb") as file:
        file.write(contents)
        os.fsync(file.fileno())
    return path


@pytest.fixture(scope="session")
def trips(tmp_path_factory) -> Path:
    """The file that docs/examples/trips.py makes."""
    path = tmp_path_factory.mktemp("trips") / "trips.csv"
    run("python3", str(REPOSITORY / "docs/examples/trips.py"), str(path), "20000")
    return path
