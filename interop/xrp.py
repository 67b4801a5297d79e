#!/usr/bin/env python3
"""Runs `bpfof bench xrp` on an emulated NVMe drive, and counts instructions of the guest by a plugin of QEMU.

    interop/xrp.py --bpfof PROGRAM --json FILE [--kernel NAME] [-- ARGUMENTS OF THE COMMAND]

Needs QEMU, a C compiler, and the guest that interop/image.sh and interop/module.sh make. Figures are of the whole
machine: kernel, interrupts, processes. They are exact but no times: an emulated processor has no caches and no
speed. Logs stay in .interop/nvme.
"""

import pathlib
import shutil
import subprocess
import sys

import passthrough

# Of the device that shows the counter to the guest.
SHARED_BYTES = 1 << 20


def plugin():
    """Compiles the plugin for the QEMU of this machine."""
    text = subprocess.run(
        ["qemu-system-x86_64", "--version"], stdout=subprocess.PIPE, check=True, text=True
    ).stdout
    major = int(text.split("version ")[1].split(".")[0])
    path = passthrough.RUN / "count.so"
    # What a plugin says to be made for. Later ones take 2.
    version = 1 if major < 9 else 2
    command = ["cc", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", f"-DQEMU_PLUGIN_VERSION={version}"]
    command += ["-o", path, passthrough.ROOT / "interop/nvme/count.c"]
    subprocess.run(command, check=True)
    return path


def main():
    parser = passthrough.arguments(__doc__.splitlines()[0])
    parser.add_argument("--bpfof", type=pathlib.Path, required=True, help="the program")
    parser.add_argument("--json", type=pathlib.Path, required=True, help="where figures go")
    parser.add_argument("arguments", nargs="*", help="of bpfof bench xrp")
    # A single one: a second that wakes up now and then would be counted as well.
    parser.set_defaults(processors=1, module=True, patience=1800)
    options = parser.parse_args()
    options.append += f" BPFOF_BENCH={':'.join(options.arguments) or '--chains:400:--depths:2:--repetitions:3'}"
    passthrough.RUN.mkdir(parents=True, exist_ok=True)
    counter = passthrough.RUN / "counter"
    counter.write_bytes(bytes(SHARED_BYTES))
    figures = passthrough.RUN / "bench-xrp.json"
    figures.unlink(missing_ok=True)
    more = ["-accel", "tcg,thread=single", "-plugin", f"{plugin()},counter={counter}"]
    more += ["-object", f"memory-backend-file,id=counter,share=on,mem-path={counter},size={SHARED_BYTES}"]
    more += ["-device", "ivshmem-plain,memdev=counter"]
    failures = passthrough.run(options, {"bpfof": options.bpfof}, more)
    if figures.exists():
        shutil.copy(figures, options.json)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
