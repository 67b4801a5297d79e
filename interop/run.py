#!/usr/bin/env python3
"""Tests with Debian's Linux in QEMU: it uses our target, is a target for our host, and runs our target.

    interop/run.py [--fast] [--parts PART,…] [--fio-seconds N] [--kills N]

Needs QEMU and the guest that interop/image.sh makes; the part rdma also needs CMake and RocksDB's headers
(scripts/setup.sh rocksdb). Targets and QEMU run on this machine as the
calling user; their network is the loopback interface. The steps are in interop/guest, a file for
each part; --fast runs those that `make test` has time for. Logs stay in .interop/run. The exit status is 0
only if all steps succeed and neither the guest's kernel nor a target logs a warning (docs/interop.md).
"""

import argparse
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time

import targets

ROOT = pathlib.Path(__file__).resolve().parent.parent
CACHE = ROOT / ".interop"
RUN = CACHE / "run"
BUSYBOX = CACHE / "root/bin/busybox"
PARTS = ["plain", "query", "volumes", "paths", "secure", "nvmet", "ktls", "rdma"]
# Parts that run alone, and not by default: figures instead of tests, and the tests of commands by RDMA.
COUNTED = ["rdma_figures"]
COMMANDS = ["rdma_commands"]
# Parts in which programs of ours run in the guest; the programs are options of these names.
OUR_PROGRAMS = {
    "query": ["query"],
    "volumes": ["query", "target"],
    "nvmet": ["verify"],
    "ktls": ["target", "verify"],
    "rdma": ["target", "query", "verify", "endure", "packets"],
    "rdma_figures": ["target", "packets"],
    "rdma_commands": ["target"],
}
# Lines of a log that are shown after a failure: the reason is near the end.
SHOWN_LINES = 60
# How long a step may be silent, in seconds.
PATIENCE = 300
# How often the guest is started at most. Linux patches its own code while it boots, which fails now and then if several
# threads emulate the processors; no test has run by then.
BOOTS = 3


def initrd(options):
    """Makes the initrd: the guest of image.sh with the keys of this run, and the programs that the parts need."""
    guest = RUN / "guest"
    shutil.rmtree(guest, ignore_errors=True)
    guest.mkdir()
    shutil.copytree(RUN / "keys", guest / "keys")
    for option in {option for part in options.parts for option in OUR_PROGRAMS.get(part, [])}:
        program = getattr(options, option)
        subprocess.run(["strip", "-o", guest / program.name, program], check=True)
    if options.parts == COMMANDS:
        commands(guest)
    if "rdma" in options.parts and not options.fast:
        rocksdb(guest, options.target.resolve().parent)
    names = "\n".join(str(path.relative_to(guest)) for path in sorted(guest.rglob("*")))
    command = [BUSYBOX, "cpio", "-o", "-H", "newc", "-R", "0:0"]
    archive = subprocess.run(
        command, cwd=guest, input=names.encode(), capture_output=True, check=True
    ).stdout
    path = RUN / "initrd"
    path.write_bytes((CACHE / "initrd").read_bytes() + archive)
    return path


def commands(guest):
    """Builds the tests of commands as a program for the guest, and the functions that they load: the guest has no
    compiler, so the tests run here first and leave the compiled objects."""
    # With the packages that `make test` builds: otherwise features would differ, and much would be compiled again.
    command = "cargo test --workspace --test over_messages --no-run --locked --message-format=json"
    output = subprocess.run(command.split(), cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
    messages = [json.loads(line) for line in output.splitlines()]
    program = next(one["executable"] for one in messages if one.get("executable"))
    (guest / "objects").mkdir()
    environment = {**os.environ, "BPFOF_TEST_OBJECTS": str(guest / "objects")}
    subprocess.run([program, "--quiet"], env=environment, check=True)
    subprocess.run(["strip", "-o", guest / "commands", program], check=True)


def rocksdb(guest, libraries):
    """Builds the stress test of the RocksDB integration, in /host with the libraries of this machine, because the
    guest lacks some of them."""
    build = RUN / "rocksdb"
    configure = ["cmake", "-S", ROOT / "integrations/rocksdb", "-B", build, "-DBPFOF_TESTS=ON"]
    for command in (
        configure + [f"-DBPFOF_LIBRARY_DIR={libraries}"],
        ["cmake", "--build", build, "--parallel", "2", "--target", "bpfof-rocksdb-stress"],
    ):
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    program = build / "bpfof-rocksdb-stress"
    (guest / "host").mkdir()
    needed = subprocess.run(["ldd", program], check=True, capture_output=True, text=True).stdout
    for path in [program, *(word for word in needed.split() if word.startswith("/"))]:
        shutil.copy(path, guest / "host")


def boot(control, options, served):
    """Starts the guest, with its second serial line at the socket `control`."""
    steps = f"interop.fio_seconds={options.fio_seconds} interop.kills={options.kills}"
    steps += f" interop.discovery_port={served['target'].discovery_port}"
    steps += "".join(f" interop.{name}_port={target.port}" for name, target in served.items())
    steps += f" interop.parts={','.join(options.parts)}"
    steps += " interop.fast=1" if options.fast else ""
    command = ["qemu-system-x86_64", "-cpu", "max"]
    if options.parts == COUNTED:
        # One instruction, one nanosecond: the guest's clock counts instructions.
        command += ["-accel", "tcg,thread=single", "-icount", "shift=0,sleep=off", "-smp", "1"]
    else:
        command += ["-accel", "tcg,thread=multi", "-smp", "4"]
    command += ["-m", "1024", "-display", "none", "-no-reboot", "-nodefaults"]
    command += ["-kernel", str(CACHE / "vmlinuz"), "-initrd", str(RUN / "initrd")]
    command += ["-append", f"console=ttyS0 panic=-1 log_buf_len=4M {steps}"]
    command += ["-netdev", "user,id=net", "-device", "virtio-net-pci,netdev=net,romfile="]
    command += ["-serial", f"file:{RUN / 'guest.log'}"]
    command += ["-chardev", f"socket,id=control,path={control}", "-serial", "chardev:control"]
    return subprocess.Popen(command, stderr=open(RUN / "qemu.log", "wb"))


def show_end(path, since=""):
    """Prints the end of a log, from the last line equal to `since`."""
    lines = path.read_text(errors="replace").splitlines()
    begin = max((n for n, line in enumerate(lines) if line == since), default=0)
    print(f"---- {path.name} ----")
    for line in lines[max(begin, len(lines) - SHOWN_LINES) :]:
        print(line)
    print("----")


def show_logs(served, since=""):
    show_end(RUN / "guest.log", since)
    for target in served.values():
        show_end(target.path("log"))


def carry_out(request, served):
    """Carries out a request of the guest: an action, the name of a target, and an argument."""
    action, name, rest = (request.split(" ", 2) + ["", ""])[:3]
    target = served[name]
    if action == "kill":
        target.end(signal.SIGKILL)
    elif action == "start":
        target.start()
    elif action in ("freeze", "thaw"):
        target.process.send_signal(signal.SIGSTOP if action == "freeze" else signal.SIGCONT)
    elif action in ("drain", "undrain"):
        target.ctl(action)
    elif action == "upgrade":
        target.upgrade()
    elif action == "log":
        target.logs(rest)
    elif action == "rotate":
        target.rotate(rest)
    elif action in ("grow", "add", "remove"):
        getattr(target, action)()
    else:
        raise targets.Refused(f"there is no {action}")


def follow(line, served):
    """Prints reports of the guest and carries out its requests. Returns the number of failures, or
    None if the guest stopped without any output."""
    steps, failures, begun, text = 0, 0, time.monotonic(), None
    for text in line:
        word, _, rest = text.strip().partition(" ")
        if word == "begin":
            begun = time.monotonic()
            for target in served.values():
                target.look()
        elif word in ("ok", "fail"):
            steps += 1
            print(f"{word:5}{rest} ({time.monotonic() - begun:.1f} s)", flush=True)
            if word == "fail":
                failures += 1
                show_logs(served, f"=== {rest.partition(':')[0]}")
        elif word == "note":
            print(text.strip(), flush=True)
        elif word == "please":
            try:
                carry_out(rest, served)
                answer = "done"
            except targets.Refused as refused:
                answer = str(refused)
            line.write(f"{answer}\n")
            line.flush()
        elif word == "end":
            if steps == 0:
                print("fail the guest has done no step")
            return failures + (steps == 0)
    if text is None:
        return None
    print("fail the guest stopped before its last step")
    show_logs(served)
    return failures + 1


def serve(options):
    """Starts the targets."""
    served = {"target": targets.Open(options.target, RUN)}
    if "paths" in options.parts:
        for name, cntlid in (("left", "1-32000"), ("right", "32001-65000")):
            served[name] = targets.Twin(name, cntlid, options.target, RUN)
    if "secure" in options.parts:
        for name, mode in (("guarded", "allowed"), ("required", "required")):
            served[name] = targets.Guarded(name, mode, options.target, RUN)
    for target in served.values():
        target.start()
    return served


def run(options, served, listener):
    """Boots the guest, which runs its steps. Returns the number of failures."""
    failures, guest = 1, None
    try:
        for boots_left in reversed(range(BOOTS)):
            guest = boot(RUN / "control", options, served)
            connection, _ = listener.accept()
            connection.settimeout(PATIENCE)
            found = follow(connection.makefile("rw", encoding="utf-8", errors="replace"), served)
            guest.wait(timeout=30)
            if found is not None:
                failures = found
                break
            print(f"note the guest's kernel did not boot; {boots_left} more attempts", flush=True)
            show_end(RUN / "guest.log")
        for target in served.values():
            status = target.end(signal.SIGTERM)
            if status != 0:
                print(f"fail the target {target.name} ends with status {status}")
                failures += 1
    except TimeoutError:
        print(f"fail no word from the guest for {PATIENCE} s")
        show_logs(served)
    finally:
        for process in [guest, *(target.process for target in served.values())]:
            if process and process.poll() is None:
                process.kill()
    return failures


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fast", action="store_true")
    parser.add_argument("--parts", type=lambda text: text.split(","))
    parser.add_argument("--fio-seconds", type=int, default=20)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--target", default=ROOT / "target/release/bpfof", type=pathlib.Path)
    parser.add_argument("--query", default=ROOT / "target/release/bpfof-query", type=pathlib.Path)
    examples = ROOT / "target/release/examples"
    parser.add_argument("--verify", default=examples / "verify", type=pathlib.Path)
    parser.add_argument("--endure", default=examples / "endure", type=pathlib.Path)
    parser.add_argument("--packets", default=examples / "packets", type=pathlib.Path)
    options = parser.parse_args()
    if options.parts is None:
        options.parts = ["plain", "query", "volumes", "paths", "secure"] if options.fast else PARTS
    if options.parts not in (COUNTED, COMMANDS) and (unknown := set(options.parts) - set(PARTS)):
        alone = ", ".join(COUNTED + COMMANDS)
        parser.error(f"there is no part {', '.join(unknown)}; there are {', '.join(PARTS)}; by itself: {alone}")
    RUN.mkdir(parents=True, exist_ok=True)
    control = RUN / "control"
    control.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(control))
    listener.listen(1)
    listener.settimeout(60)
    targets.make_keys(RUN)
    initrd(options)
    served = serve(options)
    failures = run(options, served, listener)
    # A target must not log warnings because of the guest, unless a step expects them.
    for target in served.values():
        for problem in target.problems()[:5]:
            print(f"fail {target.name} reports: {problem.strip()}")
            failures += 1
    print(f"{'failed' if failures else 'passed'}; logs are in {RUN}")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
