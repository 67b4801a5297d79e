"""The target processes that the guest uses, and the requests that it can make about them."""

import os
import re
import signal
import socket
import subprocess
import sys
import time

import keys

NQN = "nqn.2026-01.io.bpf-of:interop"
GUARDED = "nqn.2026-01.io.bpf-of:guarded"
# The subsystem that two targets serve.
TWINS = "nqn.2026-01.io.bpf-of:twins"
# The subsystem of the kernel's target.
KERNEL = "nqn.2026-01.io.bpf-of:kernel"
# Host N of the steps; each has rules of its own at the guarded targets.
HOST_NQN = "nqn.2014-08.org.nvmexpress:uuid:6d0b5a3e-0a51-4c2f-9a4b-1f1e5d0c7a1{}"
# Lines of a log that are problems, unless a step expects them.
PROBLEM = re.compile(r" (ERROR|WARN) |panicked")
# Longest wait for a line of a log, and until a target listens, in seconds.
LOG_PATIENCE = 20
LISTEN_PATIENCE = 30


class Refused(Exception):
    """A request of the guest has failed."""


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


class Target:
    """A target process; its files outlive it."""

    def __init__(self, name, program, directory):
        self.name, self.directory, self.process = name, directory, None
        self.port = free_port()
        # QEMU's user network shows the guest 127.0.0.1 as 10.0.2.2.
        self.command = [str(program), "target", "--listen", f"127.0.0.1:{self.port}"]
        self.command += ["--config", str(self.path("toml")), "--verbose"]
        self.log = open(self.path("log"), "wb")
        # How many lines of the log the guest has seen, and which problems it has expected.
        self.seen, self.expected = 0, set()

    def path(self, suffix):
        return self.directory / f"{self.name}.{suffix}"

    def write(self, lines):
        self.path("toml").write_text("\n".join(lines) + "\n")

    def start(self):
        self.process = subprocess.Popen(self.command, stdout=self.log, stderr=self.log)
        end = time.monotonic() + LISTEN_PATIENCE
        while time.monotonic() < end:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                if self.process.poll() is not None:
                    break
                time.sleep(0.05)
        print(*self.lines(), sep="\n")
        sys.exit(f"fail the target {self.name} does not listen on port {self.port}")

    def end(self, how):
        """Ends the process with a signal, and returns its exit status."""
        self.process.send_signal(how)
        return self.process.wait(timeout=20)

    def reload(self):
        """Makes a running target read its configuration and the sizes of its files again."""
        if self.process:
            self.process.send_signal(signal.SIGHUP)

    def lines(self):
        return self.path("log").read_text(errors="replace").splitlines()

    def look(self):
        """Ignores the log up to now, for the step that begins."""
        self.seen = len(self.lines())

    def logs(self, pattern):
        """Waits for a new line of the log that matches the pattern. Warnings that match count as expected."""
        for _ in range(LOG_PATIENCE * 10):
            lines = self.lines()
            for at in range(self.seen, len(lines)):
                if re.search(pattern, lines[at]):
                    alike = (n for n in range(at, len(lines)) if re.search(pattern, lines[n]))
                    self.expected.update(alike)
                    self.seen = at + 1
                    return
            time.sleep(0.1)
        raise Refused(f"the log of {self.name} has no line with {pattern}")

    def problems(self):
        lines = enumerate(self.lines())
        return [line for n, line in lines if PROBLEM.search(line) and n not in self.expected]


class Open(Target):
    """A target without rules, whose namespaces change."""

    def __init__(self, program, directory):
        super().__init__("target", program, directory)
        self.discovery_port = free_port()
        self.command += ["--discovery", f"127.0.0.1:{self.discovery_port}"]
        store = directory / "store.img"
        store.unlink(missing_ok=True)
        create = [str(program), "kv", "create", "--levels", "2", "--text", "--file", str(store)]
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
                (directory / f"{name}.img").unlink(missing_ok=True)
        self.configure()
        self.grow(1 << 30)

    def configure(self):
        """Writes the configuration file."""
        named = self.namespaces.items()
        disks = [f"file:path={self.directory / name}.img{rest}" for name, rest in named]
        self.write([f'nqn = "{NQN}"', "namespaces = [", *(f'  "{disk}",' for disk in disks), "]"])

    def grow(self, size_bytes=3 << 29):
        """Changes the size of the third disk."""
        with open(self.directory / "grows.img", "ab") as disk:
            disk.truncate(size_bytes)
        self.reload()

    def add(self):
        """Adds a namespace to the first subsystem, with the next free id."""
        self.namespaces["new"] = ",size=256MiB"
        self.configure()
        self.reload()

    def remove(self):
        """Removes the added namespace."""
        del self.namespaces["new"]
        self.configure()
        self.reload()


class Twin(Target):
    """One of two targets that serve one disk together. It advertises the address at which the guest reaches it."""

    UUID = "0b8f7a52-3c1d-4e6f-8a90-5d2c7e4b1f36"

    def __init__(self, name, cntlid, program, directory):
        super().__init__(name, program, directory)
        self.control = directory / f"{name}.sock"
        self.command[self.command.index("--listen") + 1] += f",advertise=10.0.2.2:{self.port}"
        self.command += ["--control", str(self.control), "--cntlid", cntlid]
        disk = f"file:path={directory / 'twins.img'},size=256MiB,uuid={self.UUID}"
        self.write([f'nqn = "{TWINS}"', f'namespaces = ["{disk}"]'])

    def ctl(self, *words):
        command = [self.command[0], "ctl", "--socket", str(self.control), *words]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise Refused(f"{' '.join(words)}: {done.stderr.strip()}")

    def upgrade(self):
        """Starts another process that takes over from this one, while hosts are connected."""
        old, command = self.process, [*self.command, "--take-over", str(self.control)]
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log)
        try:
            status = old.wait(timeout=60)
        except subprocess.TimeoutExpired:
            old.kill()
            raise Refused("the old process does not end") from None
        if status or self.process.poll() is not None:
            raise Refused(f"the old process ended with {status}, the new one with {self.process.poll()}")


class Guarded(Target):
    """A target with rules: most hosts must use TLS or authenticate."""

    # Rules by the number of the host, with names of key files.
    RULES = {
        2: {"tls-psk": ["tls256"]},
        3: {"tls-psk": ["tls384"]},
        4: {"dhchap-key": ["chap"], "dhchap-ctrl-key": "chap-target"},
        5: {"tls-psk": ["tls256"], "dhchap-key": ["chap"], "dhchap-ctrl-key": "chap-target"},
        6: {"rights": ["read"]},
        7: {"dhchap-key": ["chap-plain"]},
        8: {"dhchap-key": ["chap384"]},
        9: {"dhchap-key": ["chap512"]},
        "a": {"tls-psk": ["tls-retained"], "tls-compat": True},
    }
    # The keys that the rules of hosts 2 and 4 have while keys are changed.
    ROTATION = {
        "old": (["tls256"], ["chap"]),
        "both": (["tls256", "tls256-new"], ["chap", "chap-new"]),
        "new": (["tls256-new"], ["chap-new"]),
    }

    def __init__(self, name, mode, program, directory):
        super().__init__(name, program, directory)
        self.mode, self.rules = mode, dict(self.RULES)
        (directory / f"{name}.img").unlink(missing_ok=True)
        self.configure()

    def configure(self):
        keys_of = self.directory / "keys"

        def value(name, of):
            if name in ("rights", "tls-compat"):
                return str(of).lower()
            return str([str(keys_of / key) for key in of]) if name != "dhchap-ctrl-key" else f'"{keys_of / of}"'

        disk = f"file:path={self.path('img')},size=256MiB"
        lines = [f'nqn = "{GUARDED}"', f'namespaces = ["{disk}"]', f'tls = "{self.mode}"']
        for number, rule in self.rules.items():
            lines += ["[[host]]", f'nqn = "{HOST_NQN.format(number)}"']
            lines += [f"{name} = {value(name, of)}" for name, of in rule.items()]
        self.write(lines)

    def rotate(self, which):
        """Changes the keys of hosts 2 and 4, and waits until the running target uses them."""
        tls, chap = self.ROTATION[which]
        self.rules[2] = {"tls-psk": tls}
        self.rules[4] = {**self.RULES[4], "dhchap-key": chap}
        self.configure()
        self.reload()
        self.logs("the configuration is in force")


def make_keys(directory):
    """Writes the keys of all hosts."""
    made = directory / "keys"
    made.mkdir(exist_ok=True)
    texts = {name: keys.tls_key(1) for name in ("tls256", "tls256-new", "tls256-wrong")}
    texts |= {"tls384": keys.tls_key(2), "tls-retained": keys.tls_key(0)}
    texts |= {"chap-plain": keys.dhchap_secret(0, 32), "chap384": keys.dhchap_secret(2, 48)}
    texts |= {"chap512": keys.dhchap_secret(3, 64)}
    for name in ("chap", "chap-new", "chap-wrong", "chap-target"):
        texts[name] = keys.dhchap_secret(1, 32)
    for name, text in texts.items():
        _write(made / name, text.encode())
    # Keys derived as in the standard, unlike those of nvme-cli 2.13.
    for name, subsystem in (("standard", GUARDED), ("kernel", KERNEL)):
        identity, psk = keys.tls_identity(texts["tls256"], HOST_NQN.format(2), subsystem)
        _write(made / f"{name}-identity", identity.encode())
        _write(made / f"{name}-psk", psk)


def _write(path, data):
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
