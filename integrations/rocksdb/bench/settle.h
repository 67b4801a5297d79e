/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#ifndef BPFOF_ROCKSDB_BENCH_SETTLE_H
#define BPFOF_ROCKSDB_BENCH_SETTLE_H

#include <rocksdb/db.h>

#include <chrono>
#include <thread>

namespace bench {

/* Waits until no flush and no compaction is pending or running. TimedOut after ten minutes. */
inline rocksdb::Status settle(rocksdb::DB *db)
{
	static const char *const BUSY[] = {
		"rocksdb.mem-table-flush-pending",
		"rocksdb.num-running-flushes",
		"rocksdb.compaction-pending",
		"rocksdb.num-running-compactions",
	};
	const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(10);

	while (std::chrono::steady_clock::now() < end) {
		uint64_t busy = 0;

		for (const char *property : BUSY) {
			uint64_t count = 0;

			db->GetIntProperty(property, &count);
			busy += count;
		}
		if (busy == 0)
			return rocksdb::Status::OK();
		std::this_thread::sleep_for(std::chrono::milliseconds(5));
	}
	return rocksdb::Status::TimedOut("compactions did not end within ten minutes");
}

} /* namespace bench */

#endif
