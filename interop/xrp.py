#!/usr/bin/env python3
"""Runs `bpfof bench xrp` on an emulated NVMe drive, and counts instructions of the guest by a plugin of QEMU.

    interop/xrp.py --bpfof PROGRAM --json FILE [--profile FILE] [--kernel NAME] [-- ARGUMENTS OF THE COMMAND]

With --profile the counts by function of the kernel and of the program, for each case and way, go to that file; the
guest is slower then, and its figures are those of a kernel without address randomization.

Needs QEMU, a C compiler, and the guest that interop/image.sh and interop/module.sh make. Figures are of the whole
machine: kernel, interrupts, processes. They are exact, but they are not times: an emulated processor has no caches
and no speed. Logs stay in .interop/nvme.
"""

import bisect
import collections
import gzip
import json
import pathlib
import shutil
import subprocess
import sys

import passthrough

# Ways to read, in the order in which the command runs them.
WAYS = ["pread", "io_uring", "passthrough", "interrupt", "work item"]
# Memory of the device that shows the counter to the guest.
SHARED_BYTES = 1 << 20


def plugin(folder):
    """Compiles the plugin for the QEMU of this machine."""
    text = subprocess.run(
        ["qemu-system-x86_64", "--version"], stdout=subprocess.PIPE, check=True, text=True
    ).stdout
    major = int(text.split("version ")[1].split(".")[0])
    path = folder / "count.so"
    # The version of the interface that a plugin declares. Later versions of QEMU accept 2.
    version = 1 if major < 9 else 2
    command = ["cc", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", f"-DQEMU_PLUGIN_VERSION={version}"]
    command += ["-o", path, passthrough.ROOT / "interop/nvme/count.c"]
    subprocess.run(command, check=True)
    return path


# The address at which Linux loads a position-independent program without randomization, and the first one of the
# kernel.
PROGRAM_BASE = 0x555555554000
KERNEL_BASE = 0xFFFF800000000000
# Assumed length of the longest function, for addresses after the last known function.
FUNCTION_BYTES = 1 << 16


def symbols(folder, program):
    """Returns addresses and names of the functions of the kernel and of the program, sorted by address."""
    found = []
    for line in gzip.open(folder / "symbols.gz", "rt"):
        address, kind, *name = line.split()
        if kind in "tTwW":
            found.append((int(address, 16), " ".join(name)))
    command = ["nm", "--demangle", "--defined-only", program]
    output = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout
    for line in output.splitlines():
        address, kind, name = line.split(" ", 2)
        if kind in "tTwW":
            found.append((PROGRAM_BASE + int(address, 16), name))
    return sorted(found)


def write_profile(path, folder, figures, program):
    """Writes the instructions for each operation by function, most expensive first."""
    known = symbols(folder, program)
    addresses = [address for address, _ in known]
    by_phase = collections.defaultdict(collections.Counter)
    for line in (folder / "counts").read_text().splitlines():
        phase, address, instructions = line.split()
        address = int(address, 16)
        at = bisect.bisect_right(addresses, address) - 1
        if at >= 0 and address - addresses[at] < FUNCTION_BYTES:
            name = known[at][1]
        else:
            name = "? of the kernel" if address >= KERNEL_BASE else "? of processes"
        by_phase[int(phase)][name] += int(instructions)
    with open(path, "w") as file:
        phase = 0
        for case in figures["cases"]:
            for way in WAYS:
                phase += 1
                operations, total = case["ways"][way]["operations"], sum(by_phase[phase].values())
                print(f"== {case['load']}, {case['in_flight']} in flight, {way}: {total / operations:.0f}", file=file)
                for name, instructions in by_phase[phase].most_common():
                    if instructions >= operations:
                        print(f"{instructions / operations:8.1f} {name}", file=file)


def main():
    parser = passthrough.arguments(__doc__.splitlines()[0])
    parser.add_argument("--bpfof", type=pathlib.Path, required=True, help="the program")
    parser.add_argument("--json", type=pathlib.Path, required=True, help="where figures go")
    parser.add_argument("--profile", type=pathlib.Path, help="where counts by function go")
    parser.add_argument("arguments", nargs="*", help="of bpfof bench xrp")
    # One processor: the instructions of a second one that wakes up now and then would be counted as well.
    parser.set_defaults(processors=1, module=True, patience=1800)
    options = parser.parse_args()
    options.append += f" BPFOF_BENCH={':'.join(options.arguments) or '--chains:400:--depths:2:--repetitions:3'}"
    folder = passthrough.logs(options)
    counter = folder / "counter"
    counter.write_bytes(bytes(SHARED_BYTES))
    figures = folder / "bench-xrp.json"
    figures.unlink(missing_ok=True)
    profile = ""
    if options.profile:
        profile = f",profile={folder / 'counts'}"
        options.append += " BPFOF_PROFILE=1 nokaslr norandmaps"
    more = ["-accel", "tcg,thread=single", "-icount", "shift=0", "-plugin", f"{plugin(folder)},counter={counter}{profile}"]
    more += ["-object", f"memory-backend-file,id=counter,share=on,mem-path={counter},size={SHARED_BYTES}"]
    more += ["-device", "ivshmem-plain,memdev=counter"]
    failures = passthrough.run(options, {"bpfof": options.bpfof}, more)
    if figures.exists():
        shutil.copy(figures, options.json)
        if options.profile:
            write_profile(options.profile, folder, json.loads(figures.read_text()), options.bpfof)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
