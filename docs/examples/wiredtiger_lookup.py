#!/usr/bin/env python3
"""WiredTiger's Python module: wiredtiger_lookup.py FOLDER [write]

With `write` it makes a table of fifty thousand rows; without, it reads two thousand of them, scans some, and updates
one. The program contains nothing of bpf-of: WIREDTIGER_CONFIG names the extension, and all reads are pushed down.
"""

import sys

import wiredtiger

ROWS = 50_000
PAGES = "allocation_size=512B,internal_page_max=512B,leaf_page_max=512B"


def key_of(number):
    return f"key{number:08d}"


def write(session):
    session.create("table:lookup", f"key_format=S,value_format=S,{PAGES}")
    cursor = session.open_cursor("table:lookup")
    for number in range(ROWS):
        cursor[key_of(number)] = f"value of {number}"
    cursor.close()


def read(session):
    cursor = session.open_cursor("table:lookup")
    found = 0
    for number in range(17, ROWS, 25):
        cursor.set_key(key_of(number))
        if cursor.search() == 0 and cursor.get_value() == f"value of {number}":
            found += 1
    cursor.set_key(key_of(ROWS))
    missing = cursor.search() == wiredtiger.WT_NOTFOUND
    cursor.set_key(key_of(4711))
    cursor.search()
    scanned = 0
    for number in range(4712, 4812):
        if cursor.next() == 0 and cursor.get_key() == key_of(number):
            scanned += 1
    cursor[key_of(4711)] = "new"
    changed = cursor[key_of(4711)] == "new"
    cursor.close()
    print(f"{found} found, {scanned} scanned, missing {missing}, changed {changed}")


def main():
    connection = wiredtiger.wiredtiger_open(sys.argv[1], "create")
    session = connection.open_session()
    if sys.argv[2:] == ["write"]:
        write(session)
    else:
        read(session)
    connection.close()


main()
