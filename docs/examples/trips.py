#!/usr/bin/env python3
"""Writes a file of taxi trips, the same in each run: trips.py FILE [ROWS]

FILE ends in .csv, or in .bin for records of 32 bytes with the fields
id u64, zone i32, seconds i32, fare f64, time i64"""

import struct
import sys

path, rows = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 200_000
state = 1


def below(limit):
    """The next number of a simple generator (Knuth's MMIX)."""
    global state
    state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
    return (state >> 33) % limit


with open(path, "wb") as file:
    if path.endswith(".csv"):
        file.write(b"id,zone,seconds,fare,vendor\n")
    for id in range(rows):
        zone, seconds, fare = below(265), below(3600), below(10_000) / 100
        if path.endswith(".csv"):
            vendor = ("CMT", "VTS", "DDS")[below(3)]
            file.write(f"{id},{zone},{seconds},{fare},{vendor}\n".encode())
        else:
            file.write(struct.pack("<QiidQ", id, zone, seconds, fare, 1_600_000_000 + id))
