/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* What this process holds. */
#ifndef BPFOF_ROCKSDB_STRESS_USAGE_H
#define BPFOF_ROCKSDB_STRESS_USAGE_H

#include <cstdint>
#include <string>

struct Usage {
	/* Memory that is resident. */
	uint64_t memory_bytes = 0;
	/* Of it, what was allocated and not freed. */
	uint64_t heap_bytes = 0;
	uint64_t descriptors = 0;
	/* Of these, those of deleted files below the directory. */
	uint64_t deleted_files = 0;
	std::string a_deleted_file;
	/* What the directory's file system says that is taken, but is in no file below the directory:
	 * its own structures, and deleted files that somebody has open. */
	uint64_t lost_bytes = 0;
	uint64_t file_bytes = 0;
};

/* Of this process and what it has made below `directory`. */
Usage usage(const std::string &directory);

#endif
