#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Writes the tables of this directory, which newer versions of RocksDB write than tests link.

    python3 -m venv V && V/bin/pip install rocksdict==0.3.29 && V/bin/python make.py

rocksdict has RocksDB 10.4.2 in it. A table has the keys and values of tables_test.cc, and its name says how it
was written: format_version, checksum, compression, whether the index is partitioned.
"""

import pathlib

from rocksdict import (
    BlockBasedIndexType,
    BlockBasedOptions,
    ChecksumType,
    DBCompressionType,
    Options,
    SstFileWriter,
)

HERE = pathlib.Path(__file__).resolve().parent
KEYS = 400
CHECKSUMS = {"crc32c": ChecksumType.crc32c(), "xxh3": ChecksumType.xxh3(), "none": ChecksumType.no_checksum()}
COMPRESSIONS = {
    "none": DBCompressionType.none(),
    "snappy": DBCompressionType.snappy(),
    "lz4": DBCompressionType.lz4(),
    "zstd": DBCompressionType.zstd(),
}
TABLES = [
    (6, "crc32c", "none", False),
    (6, "xxh3", "snappy", True),
    (6, "none", "zstd", False),
    (7, "xxh3", "none", False),
    (7, "xxh3", "zstd", True),
    (7, "crc32c", "lz4", False),
]


def key(number):
    return b"row%05d" % (number // 3) + bytes([ord("a") + number % 7]) * (number % 3 * 5)


def value(number):
    return bytes([ord("A") + number % 26]) * (20 + number % 50)


def main():
    for version, checksum, compression, is_partitioned in TABLES:
        table = BlockBasedOptions()
        table.set_format_version(version)
        table.set_checksum_type(CHECKSUMS[checksum])
        table.set_block_size(256)
        table.set_metadata_block_size(256)
        table.set_index_block_restart_interval(16)
        if is_partitioned:
            table.set_index_type(BlockBasedIndexType.two_level_index_search())
        options = Options(raw_mode=True)
        options.set_block_based_table_factory(table)
        options.set_compression_type(COMPRESSIONS[compression])
        form = "partitioned" if is_partitioned else "one-level"
        writer = SstFileWriter(options)
        writer.open(str(HERE / f"format{version}-{checksum}-{compression}-{form}.sst"))
        for number in sorted(range(KEYS), key=key):
            writer[key(number)] = value(number)
        writer.finish()


if __name__ == "__main__":
    main()
