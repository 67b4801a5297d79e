#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Writes a database in the layout of the original BPF-KV tool.

    original_layout.py LEVELS FILE

An independent witness for the tests: it is written from the description of
the format, one node and one value after the other, and shares nothing with
the Rust code. Standard library only.
"""

import struct
import sys

FANOUT = 31
BLOCK = 512
VALUE = 64
ON_DISK = 1 << 63
NODE = struct.Struct("<QQ31Q31Q")


def write_nodes(out, levels):
    """All nodes, level by level; children and values are numbered in order."""
    nodes = sum(FANOUT**level for level in range(levels))
    keys = FANOUT**levels
    following = 1  # the node after the one being written
    target = 1  # the next child, then (from `nodes` on) the next value
    for level in range(levels):
        width = FANOUT**level
        extent = keys // width
        leaf = level == levels - 1
        for position in range(width):
            last = position == width - 1
            start = position * extent
            node_keys = [start + k * (extent // FANOUT) for k in range(FANOUT)]
            pointers = []
            for _ in range(FANOUT):
                if leaf:
                    offset = nodes * BLOCK + (target - nodes) * VALUE
                else:
                    offset = target * BLOCK
                pointers.append(offset | ON_DISK)
                target += 1
            sibling = 0 if last else following * BLOCK
            out.write(NODE.pack(sibling, int(leaf), *node_keys, *pointers))
            following += 1


def write_log(out, levels):
    """The values, in blocks of eight; the last block is filled up."""
    keys = FANOUT**levels
    blocks = -(-keys // 8)
    for number in range(blocks * 8):
        text = str(number).rjust(VALUE - 1) + "\0"
        out.write(text.encode("ascii"))


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    with open(sys.argv[2], "wb") as out:
        write_nodes(out, int(sys.argv[1]))
        write_log(out, int(sys.argv[1]))


if __name__ == "__main__":
    main()
