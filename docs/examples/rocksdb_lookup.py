#!/usr/bin/env python3
"""RocksDB's C API with ctypes: rocksdb_lookup.py DATABASE [SETTINGS]

Writes a hundred thousand keys, reads ten thousand of them, and prints where the reads ran. With SETTINGS
(url=…;device=…) the database is opened by bpf-of; only that line differs. Without SETTINGS it is opened by RocksDB,
unless libbpfof-rocksdb-preload is preloaded and BPFOF_ROCKSDB has the settings.
"""

import ctypes
import json
import sys
import time
from ctypes import POINTER, byref, c_char_p, c_size_t, c_void_p

KEYS = 100_000
rocksdb = ctypes.CDLL("librocksdb.so.7.8", mode=ctypes.RTLD_GLOBAL)


def function(library, name, result, *arguments):
    called = getattr(library, name)
    called.restype, called.argtypes = result, arguments
    return called


def checked(call, *arguments):
    """Calls what takes a pointer to an error as its last argument."""
    error = c_char_p()
    result = call(*arguments, byref(error))
    if error.value is not None:
        raise OSError(error.value.decode())
    return result


ERROR = POINTER(c_char_p)
new_options = function(rocksdb, "rocksdb_options_create", c_void_p)
set_create = function(rocksdb, "rocksdb_options_set_create_if_missing", None, c_void_p, ctypes.c_ubyte)
open_plain = function(rocksdb, "rocksdb_open", c_void_p, c_void_p, c_char_p, ERROR)
close = function(rocksdb, "rocksdb_close", None, c_void_p)
new_write = function(rocksdb, "rocksdb_writeoptions_create", c_void_p)
new_read = function(rocksdb, "rocksdb_readoptions_create", c_void_p)
new_flush = function(rocksdb, "rocksdb_flushoptions_create", c_void_p)
put = function(rocksdb, "rocksdb_put", None, c_void_p, c_void_p, c_char_p, c_size_t, c_char_p, c_size_t, ERROR)
flush = function(rocksdb, "rocksdb_flush", None, c_void_p, c_void_p, ERROR)
get = function(rocksdb, "rocksdb_get", c_void_p, c_void_p, c_void_p, c_char_p, c_size_t, POINTER(c_size_t), ERROR)
text_property = function(rocksdb, "rocksdb_property_value", c_void_p, c_void_p, c_char_p)
free = function(rocksdb, "rocksdb_free", None, c_void_p)


def open_database(options, path, settings):
    if settings is None:
        return checked(open_plain, options, path)
    pushdown = ctypes.CDLL("libbpfof-rocksdb-preload.so")
    open_pushed = function(pushdown, "bpfof_rocksdb_open", c_void_p, c_void_p, c_char_p, c_char_p, ERROR)
    return checked(open_pushed, options, settings, path)


def property_of(database, name):
    text = text_property(database, name)
    if not text:
        return None
    value = ctypes.string_at(text)
    free(text)
    return value


def read(database, how, key):
    length = c_size_t()
    found = checked(get, database, how, key, len(key), byref(length))
    if not found:
        return None
    value = ctypes.string_at(found, length.value)
    free(found)
    return value


def value_of(number):
    return b"value %d" % (number * number)


def main(path, settings):
    options, how, reading = new_options(), new_write(), new_read()
    set_create(options, 1)
    database = open_database(options, path, settings)
    for number in range(KEYS):
        key, value = b"key %06d" % number, value_of(number)
        checked(put, database, how, key, len(key), value, len(value))
    checked(flush, database, new_flush())
    while property_of(database, b"bpfof.ready") == b"0":
        time.sleep(0.001)
    for number in range(0, 2 * KEYS, 20):
        value = read(database, reading, b"key %06d" % number)
        assert value == (value_of(number) if number < KEYS else None), number
    stats = property_of(database, b"bpfof.stats")
    print(json.dumps({way: n for way, n in json.loads(stats).items() if n}) if stats else "RocksDB alone")
    close(database)


if __name__ == "__main__":
    main(sys.argv[1].encode(), sys.argv[2].encode() if len(sys.argv) > 2 else None)
