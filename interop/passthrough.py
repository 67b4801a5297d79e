#!/usr/bin/env python3
"""Runs chains on emulated NVMe drives with passthrough commands, in a virtual machine: in a host, and at a
target that serves a drive.

    interop/passthrough.py [--module] [--kernel NAME] [--chains N] [--chains-beside-fio N] [--processors N]
        [--memory MIB] [--queues N] [--append TEXT] [--patience N]

With --module single chains run in the kernel of the guest, with the module of kernel/. With --kernel the guest is
that of `interop/image.sh .interop/NAME NAME`.
Needs QEMU and the guest that interop/image.sh makes, and interop/module.sh for the module. interop/nvme/init runs the
test of the executors and the command line there, as cargo builds them here. Logs stay in .interop/nvme, or
.interop/NAME/nvme, so that guests with different kernels can run at the same time. The exit status is 0 only if all
steps succeed.
"""

import argparse
import base64
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
CACHE = ROOT / ".interop"
# Serial number, size and logical block of each drive in bytes. XFS accepts no smaller drive.
DRIVES = [("ext4", 96 << 20, 512), ("xfs", 320 << 20, 512), ("bare", 16 << 20, 512)]
DRIVES += [("large", 16 << 20, 4096), ("served", 64 << 20, 512), ("broken", 16 << 20, 512)]
# The sector of the last drive that cannot be read: crates/bpfof/tests/executors/kernel.rs.
BROKEN_SECTOR = 4096
# How long a step may be silent, in seconds, and for each of its chains: a step runs the chains of nine functions.
PATIENCE = 300
PATIENCE_PER_CHAIN = 0.05
# How often the guest is started at most. Linux patches its own code while it boots, which fails now and then if several
# threads emulate the processors; no test has run by then.
BOOTS = 3


def directory(options):
    """Returns the folder of the guest."""
    return CACHE / options.kernel if options.kernel else CACHE


def logs(options):
    """Makes the folder of a run, and returns it."""
    path = directory(options) / "nvme"
    path.mkdir(parents=True, exist_ok=True)
    return path


def build(folder):
    """Builds the test of the executors, the command line, and a program in C; returns their paths."""
    # With the packages that `make test` builds: otherwise features would differ, and much would be compiled again.
    command = ["cargo", "test", "--workspace", "--test", "executors", "--no-run", "--locked"]
    output = subprocess.run(
        command + ["--message-format=json"], cwd=ROOT, stdout=subprocess.PIPE, check=True
    ).stdout
    messages = [json.loads(line) for line in output.splitlines()]
    programs = [message["executable"] for message in messages if message.get("executable")]
    test = next(program for program in programs if "/executors-" in program)
    # Cargo builds the program that a test runs beside it, and the C library with what the test needs.
    return test, pathlib.Path(test).parent.parent / "bpfof", c_program(folder, pathlib.Path(test).parent)


def c_program(folder, libraries):
    """Builds a program that uses the C library."""
    path = folder / "get"
    command = "cc -std=c99 -D_POSIX_C_SOURCE=200809L -O2 -Wall -Wextra -Werror -I crates/capi/include -o".split()
    command += [path, "interop/nvme/get.c", libraries / "libbpfof.a", "-lm", "-lpthread", "-ldl"]
    subprocess.run(command, cwd=ROOT, check=True)
    return path


def initrd(options, programs):
    """Makes the initrd: the guest of image.sh with another first process, programs by name, and a storage function."""
    guest = logs(options) / "guest"
    shutil.rmtree(guest, ignore_errors=True)
    guest.mkdir(parents=True)
    shutil.copy(ROOT / "interop/nvme/init", guest / "init")
    (guest / "init").chmod(0o755)
    for name, program in programs.items():
        subprocess.run(["strip", "-o", guest / name, program], check=True)
    command = "clang -O2 -g -target bpf -mcpu=v3 -I functions/include -c".split()
    source = "crates/bpfof/tests/executors/follow.bpf.c"
    subprocess.run(command + [source, "-o", guest / "follow.bpf.o"], cwd=ROOT, check=True)
    if options.module:
        shutil.copy(directory(options) / "bpfof_xrp.ko", guest)
        subprocess.run(["make", "-s", "-C", ROOT / "functions"], check=True)
        shutil.copytree(ROOT / "functions/build", guest / "functions")
    if options.module and "executors" in programs:
        ends(options, programs["executors"], guest / "ends")
    names = "\n".join(str(path.relative_to(guest)) for path in sorted(guest.rglob("*")))
    command = [directory(options) / "root/bin/busybox", "cpio", "-o", "-H", "newc", "-R", "0:0"]
    archive = subprocess.run(
        command, cwd=guest, input=names.encode(), stdout=subprocess.PIPE, check=True
    ).stdout
    path = logs(options) / "initrd"
    path.write_bytes((directory(options) / "base.cpio").read_bytes() + archive)
    return path


def ends(options, test, folder):
    """Writes the results of random chains by the interpreter, which is many times faster here than in the guest."""
    folder.mkdir()
    environment = os.environ | {"BPFOF_ENDS": folder, "BPFOF_FUNCTIONS": ROOT / "functions/build"}
    environment["BPFOF_CHAINS"] = str(options.chains)
    command = [test, "ends_of_random_chains", "--ignored", "--quiet"]
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
    if not any(folder.iterdir()):
        sys.exit("fail the executors have no test ends_of_random_chains")


def boot(control, options, programs, more):
    folder = logs(options)
    command = ["qemu-system-x86_64", *more, "-cpu", "max", "-smp", str(options.processors)]
    command += ["-m", str(options.memory), "-display", "none", "-no-reboot", "-nodefaults"]
    command += ["-kernel", str(directory(options) / "vmlinuz"), "-initrd", str(initrd(options, programs))]
    command += ["-append", f"console=ttyS0 panic=-1 log_buf_len=4M {options.append}"]
    for name, size, block in DRIVES:
        image = folder / f"{name}.img"
        image.unlink(missing_ok=True)
        with open(image, "wb") as disk:
            disk.truncate(size)
        node = f"file.driver=file,file.filename={image}"
        if name == "broken":
            fault = f"event=none,iotype=read,sector={BROKEN_SECTOR},errno=5,once=off".split(",")
            node = f"file.driver=blkdebug,file.image.driver=file,file.image.filename={image},"
            node += ",".join(f"file.inject-error.0.{setting}" for setting in fault)
        command += ["-drive", f"driver=raw,{node},if=none,id={name},cache=unsafe"]
        command += ["-device", f"nvme,serial={name},id=nvme-{name},max_ioqpairs={options.queues}"]
        blocks = f"logical_block_size={block},physical_block_size={block}"
        command += ["-device", f"nvme-ns,drive={name},bus=nvme-{name},{blocks}"]
    command += ["-qmp", f"unix:{folder / 'monitor'},server=on,wait=off"]
    command += ["-serial", f"file:{folder / 'guest.log'}"]
    command += ["-chardev", f"socket,id=control,path={control}", "-serial", "chardev:control"]
    return subprocess.Popen(command, stderr=open(folder / "qemu.log", "wb"))


def limit(monitor_path, drive, bytes_per_second):
    """Limits the rate of reads of a drive; 0 removes the limit."""
    arguments = dict.fromkeys(("bps", "bps_wr", "iops", "iops_rd", "iops_wr"), 0)
    arguments |= {"device": drive, "bps_rd": bytes_per_second}
    with socket.socket(socket.AF_UNIX) as monitor:
        monitor.settimeout(20)
        monitor.connect(str(monitor_path))
        answers = monitor.makefile("r")
        answers.readline()
        for name, given in (("qmp_capabilities", {}), ("block_set_io_throttle", arguments)):
            monitor.sendall(json.dumps({"execute": name, "arguments": given}).encode())
            answer = {"event": None}
            while "event" in answer:
                answer = json.loads(answers.readline())
            if "return" not in answer:
                print(f"note QEMU refuses {name}: {answer}", flush=True)


def follow(folder, line):
    """Carries out requests of the guest: prints reports, slows a drive down, keeps a file. Returns the number of
    failures, or None if the guest stopped without any output."""
    steps, failures, begun, text = 0, 0, time.monotonic(), None
    for text in line:
        word, _, rest = text.strip().partition(" ")
        if word == "begin":
            begun = time.monotonic()
        elif word in ("ok", "fail"):
            steps += 1
            print(f"{word:5}{rest} ({time.monotonic() - begun:.1f} s)", flush=True)
            failures += word == "fail"
        elif word == "say":
            print(rest, flush=True)
        elif word in ("slow", "quick"):
            # A read of a block takes 8 s.
            limit(folder / "monitor", rest, 64 if word == "slow" else 0)
        elif word == "file":
            name, _, content = rest.partition(" ")
            (folder / pathlib.Path(name).name).write_bytes(base64.b64decode(content))
        elif word == "end":
            if steps == 0:
                print("fail the guest has done no step")
            return failures + (steps == 0)
    if text is None:
        return None
    print("fail the guest stopped before its last step")
    return failures + 1


def run(options, programs, more):
    """Boots the guest, with more arguments for QEMU, and follows its steps. Returns the number of failures."""
    folder = logs(options)
    control = folder / "control"
    control.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(control))
    listener.listen(1)
    listener.settimeout(60)
    failures = 1
    try:
        for boots_left in reversed(range(BOOTS)):
            guest = boot(control, options, programs, more)
            connection, _ = listener.accept()
            connection.settimeout(options.patience)
            found = follow(folder, connection.makefile("r", encoding="utf-8", errors="replace"))
            guest.wait(timeout=30)
            if found is not None:
                failures = found
                break
            print(f"note the guest's kernel did not boot; {boots_left} more attempts", flush=True)
    except TimeoutError:
        print(f"fail no word from the guest for {options.patience} s")
    finally:
        if guest.poll() is None:
            guest.kill()
    print(f"{'failed' if failures else 'passed'}; logs are in {folder}")
    return failures


def arguments(description):
    """Returns a parser with the arguments that all guests share."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--kernel", default="", help="of the guest, as image.sh names it")
    parser.add_argument("--processors", type=int, default=2, help="of the guest")
    parser.add_argument("--memory", type=int, default=1024, help="of the guest, in MiB")
    parser.add_argument("--queues", type=int, default=64, help="of each drive")
    parser.add_argument("--append", default="", help="to the kernel's command line")
    parser.add_argument("--patience", type=float, help="with a step that says nothing, in seconds")
    return parser


def main():
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--module", action="store_true")
    parser.add_argument("--chains", type=int, default=2000, help="of each test that counts them")
    parser.add_argument("--chains-beside-fio", type=int, help="of that step; as many if it is not given")
    options = parser.parse_args()
    # The guest ends with this program.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    beside_fio = options.chains_beside_fio or options.chains
    options.patience = options.patience or PATIENCE + PATIENCE_PER_CHAIN * max(options.chains, beside_fio)
    options.append += f" BPFOF_CHAINS={options.chains} BPFOF_CHAINS_BESIDE_FIO={beside_fio}"
    programs = dict(zip(("executors", "bpfof", "get"), build(logs(options))))
    sys.exit(1 if run(options, programs, ["-accel", "tcg,thread=multi"]) else 0)


if __name__ == "__main__":
    main()
