#!/usr/bin/env python3
"""Runs chains on emulated NVMe drives by commands of our own, in a virtual machine: in a host, and at a
target that serves a drive.

    interop/passthrough.py [--module] [--chains N] [--processors N] [--queues N] [--append TEXT]

With --module chains that are alone run in the kernel of the guest, by the module of kernel/.
Needs QEMU and the guest that interop/image.sh makes, and interop/module.sh for the module. What runs there are the test of the executors and
the command line, as cargo builds them here, from interop/nvme/init. Logs stay in .interop/nvme. The exit status is 0
only if each step went well.
"""

import argparse
import json
import pathlib
import shutil
import socket
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
CACHE = ROOT / ".interop"
RUN = CACHE / "nvme"
BUSYBOX = CACHE / "root/bin/busybox"
# Serial number, size and logical block of each drive in bytes. XFS takes no smaller one.
DRIVES = [("ext4", 96 << 20, 512), ("xfs", 320 << 20, 512), ("bare", 16 << 20, 512)]
DRIVES += [("large", 16 << 20, 4096), ("served", 64 << 20, 512)]
# The longest that a step may be silent, in seconds.
PATIENCE = 300
# How often the guest is started at most. Patching its kernel's code, as Linux does while it boots, goes
# wrong now and then where processors are emulated by several threads; nothing has been tested by then.
BOOTS = 3


def build():
    """The test of the executors, and the command line."""
    # Of the whole workspace, or features differ and much is compiled again.
    command = ["cargo", "test", "--workspace", "--test", "executors", "--no-run", "--locked"]
    output = subprocess.run(
        command + ["--message-format=json"], cwd=ROOT, stdout=subprocess.PIPE, check=True
    ).stdout
    messages = [json.loads(line) for line in output.splitlines()]
    programs = [message["executable"] for message in messages if message.get("executable")]
    test = next(program for program in programs if "/executors-" in program)
    # Cargo builds the program that a test runs beside it.
    return test, pathlib.Path(test).parent.parent / "bpfof"


def initrd(options):
    """The guest of image.sh with another first process, the test, and its storage function."""
    guest = RUN / "guest"
    shutil.rmtree(guest, ignore_errors=True)
    guest.mkdir(parents=True)
    shutil.copy(ROOT / "interop/nvme/init", guest / "init")
    (guest / "init").chmod(0o755)
    for name, program in zip(("executors", "bpfof"), build()):
        subprocess.run(["strip", "-o", guest / name, program], check=True)
    command = "clang -O2 -g -target bpf -mcpu=v3 -I functions/include -c".split()
    source = "crates/bpfof/tests/executors/follow.bpf.c"
    subprocess.run(command + [source, "-o", guest / "follow.bpf.o"], cwd=ROOT, check=True)
    if options.module:
        shutil.copy(CACHE / "bpfof_xrp.ko", guest)
        subprocess.run(["make", "-s", "-C", ROOT / "functions"], check=True)
        shutil.copytree(ROOT / "functions/build", guest / "functions")
    names = "\n".join(str(path.relative_to(guest)) for path in sorted(guest.rglob("*")))
    command = [BUSYBOX, "cpio", "-o", "-H", "newc", "-R", "0:0"]
    archive = subprocess.run(
        command, cwd=guest, input=names.encode(), stdout=subprocess.PIPE, check=True
    ).stdout
    path = RUN / "initrd"
    path.write_bytes((CACHE / "base.cpio").read_bytes() + archive)
    return path


def boot(control, options):
    command = ["qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "max"]
    command += ["-smp", str(options.processors)]
    command += ["-m", "1024", "-display", "none", "-no-reboot", "-nodefaults"]
    command += ["-kernel", str(CACHE / "vmlinuz"), "-initrd", str(initrd(options))]
    command += ["-append", f"console=ttyS0 panic=-1 BPFOF_CHAINS={options.chains} {options.append}"]
    for name, size, block in DRIVES:
        image = RUN / f"{name}.img"
        image.unlink(missing_ok=True)
        with open(image, "wb") as disk:
            disk.truncate(size)
        command += ["-drive", f"file={image},if=none,id={name},format=raw,cache=unsafe"]
        command += ["-device", f"nvme,serial={name},id=nvme-{name},max_ioqpairs={options.queues}"]
        blocks = f"logical_block_size={block},physical_block_size={block}"
        command += ["-device", f"nvme-ns,drive={name},bus=nvme-{name},{blocks}"]
    command += ["-serial", f"file:{RUN / 'guest.log'}"]
    command += ["-chardev", f"socket,id=control,path={control}", "-serial", "chardev:control"]
    return subprocess.Popen(command, stderr=open(RUN / "qemu.log", "wb"))


def follow(line):
    """Prints what the guest reports. Returns the number of failures, or None if the guest stopped
    before it said anything."""
    failures, begun, text = 0, time.monotonic(), None
    for text in line:
        word, _, rest = text.strip().partition(" ")
        if word == "begin":
            begun = time.monotonic()
        elif word in ("ok", "fail"):
            print(f"{word:5}{rest} ({time.monotonic() - begun:.1f} s)", flush=True)
            failures += word == "fail"
        elif word == "end":
            return failures
    if text is None:
        return None
    print("fail the guest stopped before its last step")
    return failures + 1


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--module", action="store_true")
    parser.add_argument("--chains", type=int, default=2000, help="of each test that counts them")
    parser.add_argument("--processors", type=int, default=2, help="of the guest")
    parser.add_argument("--queues", type=int, default=64, help="of each drive")
    parser.add_argument("--append", default="", help="to the kernel's command line")
    options = parser.parse_args()
    RUN.mkdir(parents=True, exist_ok=True)
    control = RUN / "control"
    control.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(control))
    listener.listen(1)
    listener.settimeout(20)
    failures = 1
    try:
        for boots_left in reversed(range(BOOTS)):
            guest = boot(control, options)
            connection, _ = listener.accept()
            connection.settimeout(PATIENCE)
            found = follow(connection.makefile("r", encoding="utf-8", errors="replace"))
            guest.wait(timeout=30)
            if found is not None:
                failures = found
                break
            print(f"note the guest's kernel did not boot; {boots_left} more attempts", flush=True)
    except TimeoutError:
        print(f"fail no word from the guest for {PATIENCE} s")
    finally:
        if guest.poll() is None:
            guest.kill()
    print(f"{'failed' if failures else 'passed'}; logs are in {RUN}")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
