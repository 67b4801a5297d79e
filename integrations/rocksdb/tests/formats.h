/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#ifndef BPFOF_ROCKSDB_TESTS_FORMATS_H
#define BPFOF_ROCKSDB_TESTS_FORMATS_H

#include <rocksdb/version.h>

#include <cstdint>

/* The newest format_version that this RocksDB writes. */
constexpr uint32_t NEWEST_FORMAT = ROCKSDB_MAJOR * 100 + ROCKSDB_MINOR >= 1004  ? 7
				   : ROCKSDB_MAJOR * 100 + ROCKSDB_MINOR >= 806 ? 6
										: 5;

#endif
