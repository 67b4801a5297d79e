/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Resources that this process holds. */
#ifndef BPFOF_ROCKSDB_STRESS_USAGE_H
#define BPFOF_ROCKSDB_STRESS_USAGE_H

#include <cstdint>
#include <string>

struct Usage {
	/* Resident memory. */
	uint64_t memory_bytes = 0;
	/* The part of it that was allocated and not freed. */
	uint64_t heap_bytes = 0;
	uint64_t descriptors = 0;
	/* Of these descriptors, those of deleted files below the directory. */
	uint64_t deleted_files = 0;
	std::string a_deleted_file;
	/* Bytes in use on the directory's file system that are in no file below the directory: its own
	 * structures, and deleted files that are still open. */
	uint64_t lost_bytes = 0;
	uint64_t file_bytes = 0;
};

/* The usage of this process and of the files that it has made below `directory`. */
Usage usage(const std::string &directory);

#endif
