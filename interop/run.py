#!/usr/bin/env python3
"""Lets a stock Linux host use our target, and says how each step went.

    interop/run.py [--fast] [--fio-seconds N] [--kills N]

Needs QEMU and the guest that interop/image.sh makes. The target and QEMU run on this machine as the
calling user; their network is the loopback interface. The steps are in interop/guest/steps; --fast
takes those that `make test` has time for. Logs stay in .interop/run. The exit status is 0 only if
each step went well and neither the guest's kernel nor the target warned (docs/interop.md).
"""

import argparse
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
CACHE = ROOT / ".interop"
RUN = CACHE / "run"
NQN = "nqn.2026-01.io.bpf-of:interop"
# Lines of a log that are shown of a failure: what is near its end says why.
SHOWN_LINES = 60
# The longest that a step may be silent, in seconds.
PATIENCE = 300
# How often the guest is started at most. Patching its kernel's code, as Linux does while it boots, goes
# wrong now and then where processors are emulated by several threads; nothing has been tested by then.
BOOTS = 3


def free_ports():
    """Two ports that nobody listens on."""
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


class Target:
    """The target process; what it serves outlives it."""

    def __init__(self, program):
        self.log = open(RUN / "target.log", "wb")
        self.process = None
        # QEMU's user network shows the guest 127.0.0.1 as 10.0.2.2.
        self.port, self.discovery_port = free_ports()
        self.command = [str(program), "target", "--listen", f"127.0.0.1:{self.port}"]
        self.command += ["--discovery", f"127.0.0.1:{self.discovery_port}"]
        self.command += ["--config", str(RUN / "target.toml"), "--verbose"]
        store = RUN / "store.img"
        store.unlink(missing_ok=True)
        create = [str(program), "kv", "create", "--levels", "2", "--file", str(store)]
        subprocess.run(create, check=True, capture_output=True)
        other = f",size=64MiB,nqn={NQN}-other"
        self.namespaces = {
            "a": ",size=1GiB",
            "b": ",size=512MiB,lba=4096",
            "grows": "",
            "store": "",
            "other": other,
        }
        for name in [*self.namespaces, "new"]:
            if name != "store":
                (RUN / f"{name}.img").unlink(missing_ok=True)
        self.configure()
        self.grow(1 << 30)

    def start(self):
        self.process = subprocess.Popen(self.command, stdout=self.log, stderr=self.log)
        for _ in range(100):
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                if self.process.poll() is not None:
                    break
                time.sleep(0.05)
        show_end("target.log")
        sys.exit(f"fail the target does not listen on port {self.port}")

    def configure(self):
        """Writes the configuration file."""
        disks = [f"file:path={RUN / name}.img{rest}" for name, rest in self.namespaces.items()]
        lines = [f'nqn = "{NQN}"', "namespaces = [", *(f'  "{disk}",' for disk in disks), "]"]
        (RUN / "target.toml").write_text("\n".join(lines) + "\n")

    def reload(self):
        """Has a running target look at its configuration and its files again."""
        if self.process:
            self.process.send_signal(signal.SIGHUP)

    def grow(self, size_bytes):
        """Gives the third disk another size."""
        with open(RUN / "grows.img", "ab") as disk:
            disk.truncate(size_bytes)
        self.reload()

    def add(self):
        """Gives the first subsystem a namespace more, with the next free id."""
        self.namespaces["new"] = ",size=256MiB"
        self.configure()
        self.reload()

    def remove(self):
        """Takes it away again."""
        del self.namespaces["new"]
        self.configure()
        self.reload()

    def end(self, how):
        """Returns the exit status."""
        self.process.send_signal(how)
        return self.process.wait(timeout=20)


def boot(control, options, target):
    """Starts the guest, with its second serial line at the socket `control`."""
    steps = f"interop.fio_seconds={options.fio_seconds} interop.kills={options.kills}"
    steps += f" interop.port={target.port} interop.discovery_port={target.discovery_port}"
    steps += " interop.fast=1" if options.fast else ""
    command = ["qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "4"]
    command += ["-m", "1024", "-display", "none", "-no-reboot", "-nodefaults"]
    command += ["-kernel", str(CACHE / "vmlinuz"), "-initrd", str(CACHE / "initrd")]
    command += ["-append", f"console=ttyS0 panic=-1 log_buf_len=4M {steps}"]
    command += ["-netdev", "user,id=net", "-device", "virtio-net-pci,netdev=net,romfile="]
    command += ["-serial", f"file:{RUN / 'guest.log'}"]
    command += ["-chardev", f"socket,id=control,path={control}", "-serial", "chardev:control"]
    return subprocess.Popen(command, stderr=open(RUN / "qemu.log", "wb"))


def show_end(name, since=""):
    """Prints the end of a log, from the last line that is `since` on."""
    lines = (RUN / name).read_text(errors="replace").splitlines()
    begin = max((n for n, line in enumerate(lines) if line == since), default=0)
    print(f"---- {name} ----")
    for line in lines[max(begin, len(lines) - SHOWN_LINES) :]:
        print(line)
    print("----")


def follow(line, target):
    """Prints what the guest reports and does what it asks for. Returns the number of failures, or
    None if the guest stopped before it said anything."""
    failures, begun, text = 0, time.monotonic(), None
    for text in line:
        word, _, rest = text.strip().partition(" ")
        if word == "begin":
            begun = time.monotonic()
        elif word in ("ok", "fail"):
            print(f"{word:5}{rest} ({time.monotonic() - begun:.1f} s)", flush=True)
            if word == "fail":
                failures += 1
                show_end("guest.log", f"=== {rest.partition(':')[0]}")
                show_end("target.log")
        elif word == "please":
            if rest == "kill":
                target.end(signal.SIGKILL)
            elif rest == "start":
                target.start()
            elif rest == "grow":
                target.grow(3 << 29)
            elif rest == "add":
                target.add()
            elif rest == "remove":
                target.remove()
            line.write("done\n")
            line.flush()
        elif word == "end":
            return failures
    if text is None:
        return None
    print("fail the guest stopped before its last step")
    show_end("guest.log")
    show_end("target.log")
    return failures + 1


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fast", action="store_true")
    parser.add_argument("--fio-seconds", type=int, default=20)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--target", default=ROOT / "target/release/bpfof")
    options = parser.parse_args()
    RUN.mkdir(parents=True, exist_ok=True)
    control = RUN / "control"
    control.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(control))
    listener.listen(1)
    listener.settimeout(20)
    target = Target(options.target)
    target.start()
    failures = 1
    try:
        for boots_left in reversed(range(BOOTS)):
            guest = boot(control, options, target)
            connection, _ = listener.accept()
            connection.settimeout(PATIENCE)
            found = follow(connection.makefile("rw", encoding="utf-8", errors="replace"), target)
            guest.wait(timeout=30)
            if found is not None:
                failures = found
                break
            print(f"note the guest's kernel did not boot; {boots_left} more attempts", flush=True)
            show_end("guest.log")
        status = target.end(signal.SIGTERM)
        if status != 0:
            print(f"fail the target ends with status {status}")
            failures += 1
    except TimeoutError:
        print(f"fail no word from the guest for {PATIENCE} s")
        show_end("guest.log")
        show_end("target.log")
    finally:
        for process in (guest, target.process):
            if process.poll() is None:
                process.kill()
    # Nothing that the guest does is a reason for the target to warn.
    lines = open(RUN / "target.log", errors="replace")
    problems = [line for line in lines if re.search(r" (ERROR|WARN) |panicked", line)]
    for problem in problems[:5]:
        print(f"fail the target reports: {problem.strip()}")
    print(f"{'failed' if failures or problems else 'passed'}; logs are in {RUN}")
    sys.exit(1 if failures or problems else 0)


if __name__ == "__main__":
    main()
