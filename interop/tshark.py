#!/usr/bin/env python3
"""Dissects our NVMe/TCP traffic with Wireshark, and compares the result with what was sent.

    interop/tshark.py [--tour PROGRAM]

Runs the example `tour` (crates/bpfof/examples/tour.rs) on loopback while dumpcap records. Then
tshark, which shares no code with us, must find each byte in a PDU that it understands, good digests,
and for each command the opcode, data and status that the tour printed. Vendor opcodes and statuses
must be those of docs/protocol.md. Capturing needs root. The recording stays in .interop/tshark.
"""

import argparse
import os
import pathlib
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
import xml.etree.ElementTree as xml

ROOT = pathlib.Path(__file__).resolve().parent.parent
RUN = ROOT / ".interop" / "tshark"
DISCOVERY = "nqn.2014-08.org.nvmexpress.discovery"
# NVMe/TCP 1.0 section 3.6.2: type, name, header length.
HEADER_BYTES = {0: 128, 1: 128, 4: 72, 5: 24, 6: 24, 7: 24, 9: 24}
IC_REQ, IC_RESP, COMMAND, RESPONSE, H2C_DATA, C2H_DATA, R2T = HEADER_BYTES
DIGEST_GOOD = 1
FABRICS = 0x7F
# Commands that our host sends by itself at the beginning of an association: Identify, Set Features.
HANDSHAKE = {False: [0x06, 0x09, 0x06], True: [0x06]}


class Failed(Exception):
    """The dissector found an error."""


def need(condition, words):
    if not condition:
        raise Failed(words)


class Pdu:
    """One PDU as tshark dissected it: its fields by name."""

    def __init__(self, frame, from_host):
        self.frame, self.from_host, self.fields = frame, from_host, {}

    def add(self, protocol):
        for field in protocol.iter("field"):
            name = field.get("name")
            self.fields.setdefault(name, []).append(field)
            severe = name == "_ws.expert" and "Chat" not in (field.get("showname") or "")
            unknown = name in ("_ws.malformed", "nvme-tcp.unknown_data")
            need(not severe and not unknown, f"packet {self.frame}: {field.get('showname')}")

    def __getitem__(self, name):
        """Returns the value of a field, a number or a string, as tshark shows it."""
        show = self.first(name).get("show")
        return int(show, 0) if re.fullmatch(r"0x[0-9a-fA-F]+|\d+", show) else show

    def first(self, name):
        need(name in self.fields, f"packet {self.frame}: no field {name}")
        return self.fields[name][0]

    def raw(self, name):
        """Returns the bytes of a field."""
        return bytes.fromhex(self.first(name).get("value"))

    def has(self, name):
        return name in self.fields

    def opcode(self):
        name = "nvme.fabrics.cmd.opc" if self.has("nvme.fabrics.cmd.opc") else "nvme.cmd.opc"
        return self.raw(name)[0]

    def check(self, digests):
        """Checks lengths, flags and digests (NVMe/TCP 1.0 section 3.6.1)."""
        where = f"packet {self.frame}"
        kind = self["nvme-tcp.type"]
        need(kind in HEADER_BYTES, f"{where}: PDU type {kind}")
        need(self["nvme-tcp.hlen"] == HEADER_BYTES[kind], f"{where}: HLEN of type {kind}")
        begins = kind in (IC_REQ, IC_RESP)
        header, data = (0, 0) if begins else (digests & 1, digests >> 1)
        length = self.data_bytes()
        data = data if length else 0
        need(self["nvme-tcp.flags.pdu.hdgst"] == header, f"{where}: flag HDGST")
        need(self["nvme-tcp.flags.pdu.ddgst"] == data, f"{where}: flag DDGST")
        right = HEADER_BYTES[kind] + 4 * header + length + 4 * data
        need(self["nvme-tcp.plen"] == right, f"{where}: PLEN is not {right}")
        start = HEADER_BYTES[kind] + 4 * header if length else 0
        need(self["nvme-tcp.pdo"] == start, f"{where}: PDO is not {start}")
        for name, present in [("hdgst", header), ("ddgst", data)]:
            if present:
                good = self[f"nvme-tcp.{name}.status"] == DIGEST_GOOD
                need(good, f"{where}: tshark finds no good {name}")

    def data_bytes(self):
        kind = self["nvme-tcp.type"]
        if kind in (H2C_DATA, C2H_DATA):
            return self["nvme-tcp.data.length"]
        # In the capsule: an SGL data block (0) by offset (1). Properties are shown without SGL.
        if kind == COMMAND and self.has("nvme.cmd.sgl.type"):
            if (self["nvme.cmd.sgl.type"], self["nvme.cmd.sgl.subtype"]) == (0, 1):
                return self["nvme.cmd.sgl1.len"]
        return 0


class Command:
    """One command of a connection, with its data and its completion."""

    def __init__(self, pdu):
        self.pdu, self.opcode = pdu, pdu.opcode()
        self.sent, self.received, self.asked = pdu.data_bytes(), 0, 0
        self.status = None  # type, code, DW0 if tshark has no name for it

    def answered(self, pdu):
        need(self.status is None, f"packet {pdu.frame}: a second completion")
        # Bit 0 is the phase; then the code, its type, and Do Not Retry at the end.
        field = int.from_bytes(pdu.raw("nvme.cqe.status"), "little") >> 1
        dw0 = pdu["nvme.cqe.dword0"] if pdu.has("nvme.cqe.dword0") else None
        self.status = (field >> 8 & 7, field & 0xFF, dw0)
        need(field >> 14 & 1 == (0 if field & 0x7FF == 0 else 1), f"packet {pdu.frame}: DNR")


class Connection:
    """The PDUs of one TCP connection, in the order of their last bytes."""

    def __init__(self):
        self.pdus, self.bytes = [], {True: 0, False: 0}

    def check(self, digests):
        need([p["nvme-tcp.type"] for p in self.pdus[:2]] == [IC_REQ, IC_RESP], "ICReq, ICResp")
        for pdu, name in zip(self.pdus, ["icreq", "icresp"]):
            need(pdu[f"nvme-tcp.{name}.digest"] == digests, f"{name} names digests {digests}")
            need(pdu[f"nvme-tcp.{name}.pfv"] == 0, f"{name}: format")
        for pdu in self.pdus:
            pdu.check(digests)
        for from_host in (True, False):
            seen = sum(p["nvme-tcp.plen"] for p in self.pdus if p.from_host == from_host)
            carried = self.bytes[from_host]
            need(seen == carried, f"{seen} of {carried} bytes are in PDUs that tshark sees")

    def commands(self):
        """All commands in order, each with its data and its completion."""
        commands, open_commands = [], {}
        for pdu in self.pdus[2:]:
            kind = pdu["nvme-tcp.type"]
            need(pdu.from_host == (kind in (COMMAND, H2C_DATA)), f"packet {pdu.frame}: direction")
            if kind == COMMAND:
                cid = pdu["nvme.fabrics.cmd.cid" if pdu.opcode() == FABRICS else "nvme.cmd.cid"]
                need(cid not in open_commands, f"packet {pdu.frame}: command id in use")
                open_commands[cid] = Command(pdu)
                commands.append(open_commands[cid])
                continue
            cid = pdu["nvme.cqe.cid" if kind == RESPONSE else "nvme-tcp.cmd.cid"]
            need(cid in open_commands, f"packet {pdu.frame}: no such command")
            command = open_commands[cid]
            if kind == RESPONSE:
                command.answered(pdu)
            elif kind == R2T:
                need(pdu["nvme-tcp.r2t.offset"] == command.asked, f"packet {pdu.frame}: R2TO")
                command.asked += pdu["nvme-tcp.r2t.length"]
            else:
                done = command.sent if kind == H2C_DATA else command.received
                need(pdu["nvme-tcp.data.offset"] == done, f"packet {pdu.frame}: DATAO")
                if kind == H2C_DATA:
                    command.sent += pdu.data_bytes()
                else:
                    command.received += pdu.data_bytes()
                if pdu["nvme-tcp.flags.pdu.data_success"]:
                    command.status = (0, 0, 0)
            if command.status:
                del open_commands[cid]
                need(command.asked in (0, command.sent), f"packet {pdu.frame}: data for R2T")
        need(not open_commands, f"{len(open_commands)} commands have no completion")
        return commands


def may_capture():
    try:
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW).close()
        return True
    except PermissionError:
        return False


def record(tour):
    """Runs the tour while dumpcap records. Returns its port, that of `knock`, and its output."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    capture = RUN / "capture.pcapng"
    capture.unlink(missing_ok=True)
    command = ["dumpcap", "-q", "-i", "lo", "-B", "64", "-f", f"tcp port {port}", "-w", capture]
    dumpcap = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    begun = next((line for line in dumpcap.stderr if line.startswith("File:")), None)
    if begun is None:
        dumpcap.wait()
        sys.exit("fail tshark: dumpcap cannot capture on the loopback interface")
    try:
        toured = subprocess.run([tour, f"127.0.0.1:{port}"], stdout=subprocess.PIPE, text=True, timeout=60)
        last = knock(port, capture)
    finally:
        dumpcap.send_signal(signal.SIGINT)
    words = dumpcap.stderr.read()
    dumpcap.wait()
    need(toured.returncode == 0, f"the tour failed with {toured.returncode}")
    need("dropped" not in words or "/0 (" in words, f"dumpcap lost packets: {words}")
    (RUN / "tour.log").write_text(toured.stdout)
    return port, last, toured.stdout.splitlines()


def knock(port, capture):
    """Sends a last packet, and waits until it is recorded: the kernel hands packets over with a delay. Returns the
    port that it is from.
    """
    with socket.socket() as client:
        client.bind(("127.0.0.1", 0))
        own = client.getsockname()[1]
        # Nobody listens there.
        client.connect_ex(("127.0.0.1", port))
    packet = socket.inet_aton("127.0.0.1") * 2 + struct.pack(">HH", own, port)
    end = time.monotonic() + 20
    while packet not in capture.read_bytes():
        need(time.monotonic() < end, "dumpcap records no more packets")
        time.sleep(0.1)
    return own


def dissect(port, last):
    """Dissects the recording with tshark: returns connections in the order in which they begin, without the one from
    the port `last`.
    """
    command = ["tshark", "-r", RUN / "capture.pcapng", "-d", f"tcp.port=={port},nvme-tcp"]
    command += ["-Y", f"!(tcp.port == {last})"]
    command += ["-o", "nvme-tcp.check_hdgst:TRUE", "-o", "nvme-tcp.check_ddgst:TRUE"]
    with open(RUN / "capture.pdml", "wb") as output, open(RUN / "tshark.log", "wb") as errors:
        subprocess.run([*command, "-T", "pdml"], stdout=output, stderr=errors, check=True)
    connections = {}
    for packet in xml.parse(RUN / "capture.pdml").getroot():
        fields = {field.get("name"): field.get("show") for field in packet.iter("field")}
        connection = connections.setdefault(int(fields["tcp.stream"]), Connection())
        from_host = fields["tcp.dstport"] == str(port)
        connection.bytes[from_host] += int(fields["tcp.len"])
        for protocol in packet:
            name = protocol.get("name")
            need(name != "_ws.malformed", f"packet {fields['num']}: tshark calls it malformed")
            if name == "nvme-tcp":
                connection.pdus.append(Pdu(fields["num"], from_host))
            if name in ("nvme-tcp", "nvme"):
                connection.pdus[-1].add(protocol)
    return [connections[number] for number in sorted(connections)]


def documented():
    """Returns opcodes and statuses in the tables of docs/protocol.md: {(queue, opcode)}, {code}."""
    text = (ROOT / "docs" / "protocol.md").read_text()
    rows = re.findall(r"^\| (admin|I/O) \| ([0-9A-F]{2})h \|", text, re.MULTILINE)
    statuses = text[text.index("\n## Statuses") :]
    codes = re.findall(r"^\| ([0-9A-F]{2})h \|", statuses, re.MULTILINE)
    opcodes = {("io" if queue == "I/O" else queue, int(opcode, 16)) for queue, opcode in rows}
    return opcodes, {int(code, 16) for code in codes}


def compare(lines, connections, port):
    """Compares the output of the tour with that of tshark. Returns all (queue, opcode, status type, code) seen."""
    told, namespaces = [], []
    for line in lines:
        word, *rest = line.split()
        if word == "connection":
            told.append((rest[0], int(rest[1]), rest[2], []))
        elif word == "namespace":
            namespaces.append((rest[1], rest[2]))
        else:
            queue = [entry for entry in told if entry[0] == rest[0]][-1]
            queue[3].append(rest[1:])
    need(len(told) == len(connections), f"{len(told)} connections, tshark sees {len(connections)}")
    seen, blocks = set(), []
    for (queue, digests, nqn, expected), connection in zip(told, connections):
        connection.check(digests)
        commands = connection.commands()
        check_connect(commands[0], queue, nqn)
        blocks += [shown_namespace(p) for p in connection.pdus if p.has("nvme.cmd.identify.ns.nsze")]
        others = [command for command in commands if command.opcode != FABRICS]
        if queue == "admin":
            others = without_handshake(others, nqn == DISCOVERY)
        need(len(others) == len(expected), f"{len(expected)} commands, tshark sees {len(others)}")
        for command, words in zip(others, expected):
            check_command(command, words)
            seen.add((queue, command.opcode, *command.status[:2]))
        if nqn == DISCOVERY:
            check_discovery(connection, port, told[0][2])
    need(blocks == namespaces, f"namespaces {namespaces}, tshark sees {blocks}")
    return seen


def check_connect(command, queue, nqn):
    pdu = command.pdu
    need(command.opcode == FABRICS and command.status[:2] == (0, 0), "Connect succeeds")
    need(pdu["nvme.fabrics.cmd.fctype"] == 1, "the first command is Connect")
    qid = pdu["nvme.fabrics.cmd.connect.qid"]
    need((qid == 0) == (queue == "admin"), f"Connect for queue {qid}")
    need(pdu["nvme.fabrics.cmd.connect.data.subnqn"] == nqn, f"Connect to {nqn}")


def without_handshake(commands, is_discovery):
    begin = HANDSHAKE[is_discovery]
    need([c.opcode for c in commands[: len(begin)]] == begin, "what an association begins with")
    rest = commands[len(begin) :]
    # One Identify Namespace for each, before anything else.
    while rest[0].opcode == 0x06 and not is_discovery:
        rest = rest[1:]
    return rest


def check_command(command, words):
    opcode, sct, sc = (int(word, 16) for word in words[:3])
    dw0, sent, received = (int(word) for word in words[3:])
    where = f"packet {command.pdu.frame}: command {opcode:02X}h"
    need(command.opcode == opcode, f"{where}: tshark sees {command.opcode:02X}h")
    need(command.status[:2] == (sct, sc), f"{where}: tshark sees the status {command.status}")
    need(command.status[2] in (dw0, None), f"{where}: tshark sees DW0 {command.status[2]}")
    need((command.sent, command.received) == (sent, received), f"{where}: length of data")


def shown_namespace(pdu):
    """Returns the number of blocks of a namespace, and their size in bytes."""
    data_shift = pdu.raw("nvme.cmd.identify.ns.lbaf")[2]
    return str(pdu["nvme.cmd.identify.ns.nsze"]), str(1 << data_shift)


def check_discovery(connection, port, nqn):
    """Checks that the log page has the discovery subsystem and the other, both at our address."""
    entries = []
    for pdu in connection.pdus:
        names = [f"nvme.cmd.get_logpage.identify.rcrd.{n}" for n in ("subnqn", "traddr", "trsvcid")]
        columns = [[f.get("show").strip("\0 ") for f in pdu.fields.get(n, [])] for n in names]
        entries += zip(*columns)
    right = [(name, "127.0.0.1", str(port)) for name in (DISCOVERY, nqn)]
    need(entries == right, f"discovery log: tshark sees {entries}, not {right}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tour", type=pathlib.Path, default=ROOT / "target/debug/examples/tour")
    options = parser.parse_args()
    if not may_capture():
        if os.environ.get("BPFOF_NO_SKIP"):
            sys.exit("fail tshark: capturing packets needs root (CAP_NET_RAW), and must not be left out")
        print("skip tshark: SKIPPED, capturing packets needs root (CAP_NET_RAW)")
        return
    for program in ("tshark", "dumpcap"):
        if not shutil.which(program):
            sys.exit(f"fail tshark: no {program}; run scripts/setup.sh tshark")
    RUN.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    try:
        port, last, lines = record(options.tour)
        connections = dissect(port, last)
        seen = compare(lines, connections, port)
        opcodes, codes = documented()
        vendor = {(queue, opcode) for queue, opcode, *_ in seen if opcode >= 0x80}
        need(vendor == opcodes, f"vendor opcodes seen {vendor}, in docs/protocol.md {opcodes}")
        statuses = {sc for *_, sct, sc in seen if sct == 7}
        need(statuses and statuses <= codes, f"statuses seen {statuses}, documented {codes}")
    except (Failed, subprocess.SubprocessError) as problem:
        print(f"fail tshark: {problem}; the recording is {RUN}/capture.pcapng")
        sys.exit(1)
    pdus = sum(len(connection.pdus) for connection in connections)
    print(
        f"ok   tshark: {len(connections)} connections, {pdus} PDUs, {len(seen)} kinds of answers, "
        f"{len(statuses)} of our statuses ({time.monotonic() - begun:.1f} s)"
    )


if __name__ == "__main__":
    main()
